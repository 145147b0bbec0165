"""How a field is read from a checkpoint's JSON: typed, range-checked, named in every error."""

from __future__ import annotations

from collections.abc import Mapping

from splitserve.engine_core.errors import ModelLoadError

_MAX_ITEMS = 2**16
_MAX_TOKEN_ID = 2**31 - 1


class Fields:
    """One JSON object with untrusted values; null counts as absent.

    Args:
        values: the object as decoded.
        where: file (and parent field) to name in errors.
    """

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self._values = values
        self.where = where

    def has(self, name: str) -> bool:
        """Whether the field is present and not null."""
        return self._values.get(name) is not None

    def is_null(self, name: str) -> bool:
        """Whether the field is present and null, which for some fields differs from absent."""
        return name in self._values and self._values[name] is None

    @property
    def is_empty(self) -> bool:
        """Whether the object has no fields."""
        return not self._values

    @property
    def names(self) -> set[str]:
        """Names of the fields that are not null."""
        return {name for name, value in self._values.items() if value is not None}

    def renamed(self, names: Mapping[str, str]) -> Fields:
        """Return the same fields, some of them under other names."""
        return Fields({names.get(name, name): value for name, value in self._values.items()}, self.where)

    @property
    def ordered_names(self) -> list[str]:
        """Names of all fields, in the file's order."""
        return list(self._values)

    def changed_by(self, other: Fields) -> Fields:
        """Return the fields of both; the other's take precedence, and errors name it."""
        return Fields({**self._values, **other._values}, other.where)

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """Return an integer from low to high, or the default if absent; None makes it required."""
        wanted = f"an integer from {low} to {high}"
        value = self._get(name, default, wanted)
        # A JSON writer may turn 4096 into 4096.0; both mean the same.
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(name, f"must be {wanted}, got {value!r}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """Return a finite number from low to high, or the default if absent; None makes it required."""
        wanted = f"a number from {low:g} to {high:g}"
        value = self._get(name, default, wanted)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self.error(name, f"must be {wanted}, got {value!r}")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self._get(name, default, "true or false")
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false, got {value!r}")
        return value

    def text(self, name: str, default: str) -> str:
        """Return a string, or the default if absent."""
        value = self._get(name, default, "a string")
        if not isinstance(value, str):
            raise self.error(name, f"must be a string, got {value!r}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings, empty if absent."""
        value = self._get(name, [], "a list of strings")
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(name, f"must be a list of strings, got {value!r}")
        return tuple(value)

    def nested_texts(self, name: str) -> tuple[str, ...]:
        """Return the strings of a list of strings or of lists of them, empty if absent."""
        value = self._get(name, [], "a list of strings, or of lists of them")
        items = (
            [inner for item in value for inner in (item if isinstance(item, list) else [item])]
            if isinstance(value, list)
            else [None]
        )
        return Fields({name: items}, self.where).texts(name)

    def raw(self, name: str) -> object:
        """Return the value as it is, None if absent."""
        return self._values.get(name)

    def raw_list(self, name: str) -> list[object] | None:
        """Return a list of anything, of any length, None if absent."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, list):
            raise self.error(name, f"must be a list, got {type(value).__name__}")
        return value

    def is_true(self, name: str) -> bool:
        """Whether the field is the value true; other types are allowed."""
        return self._values.get(name) is True

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Return one token id or a list of them as a tuple, empty if absent; any vocabulary is accepted."""
        value = self._get(name, [], "token ids")
        ids = value if isinstance(value, list) else [value]
        if len(ids) > 1024:
            raise self.error(name, f"must contain at most 1024 token ids, got {len(ids)}")
        entries = {str(i): token_id for i, token_id in enumerate(ids)}
        inner = Fields(entries, f"{self.where}: {name}")
        return tuple(inner.integer(key, -_MAX_TOKEN_ID, _MAX_TOKEN_ID) for key in entries)

    def integers(self, name: str, low: int, high: int) -> tuple[int, ...] | None:
        """Return a list of at most 65536 integers from low to high, None if absent."""
        inner = self._list(name)
        return None if inner is None else tuple(inner.integer(key, low, high) for key in inner._values)

    def numbers(self, name: str, low: float, high: float) -> tuple[float, ...] | None:
        """Return a list of at most 65536 finite numbers from low to high, None if absent."""
        inner = self._list(name)
        return None if inner is None else tuple(inner.number(key, low, high) for key in inner._values)

    def nested(self, name: str) -> Fields | None:
        """Return a nested object, None if absent."""
        if not self.has(name):
            return None
        value = self._values[name]
        if not isinstance(value, dict):
            raise self.error(name, f"must be an object, got {value!r}")
        return Fields(value, f"{self.where}: {name}")

    def text_items(self) -> dict[str, str]:
        """Return all fields, each of which must be a string."""
        items = {}
        for name, value in self._values.items():
            if not isinstance(value, str):
                raise self.error(name[:200], f"must be a string, got {value!r}")
            items[name] = value
        return items

    def names_of_objects(self) -> list[str]:
        """Return the names of the fields that hold objects."""
        return [name for name, value in self._values.items() if isinstance(value, dict)]

    def names_of_true(self) -> list[str]:
        """Return the names of the fields that are true."""
        return [name for name, value in self._values.items() if value is True]

    def unwanted(self, name: str, reason: str) -> ModelLoadError:
        """Return (not raise) the error for a field that must not be present, with its value."""
        return self.error(name, f"must be absent, got {self._values.get(name)!r:.200}: {reason}")

    def error(self, name: str, problem: str) -> ModelLoadError:
        """Return (not raise) an error that names the file and the field."""
        message = f"{self.where}: {name} {problem[:500]}"
        # JSON can hold halves of surrogate pairs, which no message to another process can.
        return ModelLoadError(message.encode("utf-8", "backslashreplace").decode())

    def _list(self, name: str) -> Fields | None:
        """Return the items of a list by their index, None if absent."""
        if not self.has(name):
            return None
        items = self._values[name]
        if not isinstance(items, list) or len(items) > _MAX_ITEMS:
            raise self.error(name, f"must be a list of at most {_MAX_ITEMS} numbers, got {items!r:.200}")
        return Fields({str(i): item for i, item in enumerate(items)}, f"{self.where}: {name}")

    def _get(self, name: str, default: object, wanted: str) -> object:
        value = self._values.get(name)
        if value is not None:
            return value
        if default is None:
            raise self.error(name, f"is missing; it must be {wanted}")
        return default
