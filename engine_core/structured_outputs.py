"""What an output has to be, as a client says it: JSON of a schema, a match of a regex, one of some texts."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.near_names import NearNamesMeta

MAX_REGEX_CHARS = 8192
MAX_CHOICES = 10_000
MAX_TEXT_CHARS = 2**17
MAX_WHITESPACE_CHARS = 256
KINDS: Final = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_OF_JSON: Final = ("json", "json_object", "structural_tag")


class StructuredOutputs(
    msgspec.Struct,
    metaclass=NearNamesMeta,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """What an output has to be; exactly one of the first six.

    Attributes:
        json: a JSON schema, as a dict or as its text; True takes any JSON.
        regex: 1 to 8192 characters; the whole output matches it.
        choice: 1 to 10000 texts, with 131072 characters in all, one of which the output is.
        grammar: 1 to 131072 characters of a grammar in the Lark syntax of llguidance or in GBNF.
        json_object: any JSON object.
        structural_tag: text in which certain tags are followed by what their schema says, as a dict or as
            its JSON; both forms of vLLM.
        whitespace_pattern: regex of at most 256 characters; what may stand between the parts of JSON. None
            lets nothing.
        disable_any_whitespace: for users of vLLM; it is so unless whitespace_pattern says otherwise.
    """

    json: dict[str, Any] | str | bool | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: dict[str, Any] | str | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool = False

    @property
    def kind(self) -> str:
        """Name of the field that is set."""
        (name,) = self._given()
        return name

    def validate(self) -> None:
        """Check that it says one thing, and how long that is; frontend.text.grammar checks the rest.

        Raises:
            InvalidRequestError: names the field and its range.
        """
        name = "structured_outputs"
        given = self._given()
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise InvalidRequestError(f"{name} must have exactly one of {', '.join(KINDS)}, got {got}", name)
        for field, limit in (
            ("regex", MAX_REGEX_CHARS),
            ("grammar", MAX_TEXT_CHARS),
            ("whitespace_pattern", MAX_WHITESPACE_CHARS),
        ):
            text = getattr(self, field)
            if text is not None and not 1 <= len(text) <= limit:
                words = f"{name}.{field} must have 1 to {limit} characters, got {len(text)}"
                raise InvalidRequestError(words, f"{name}.{field}")
        if self.choice is not None:
            self._check_choice(self.choice)
        if self.whitespace_pattern is not None:
            self._check_whitespace(given[0])

    def _given(self) -> list[str]:
        return [name for name in KINDS if getattr(self, name) not in (None, False) or self._is_no_json(name)]

    def _is_no_json(self, name: str) -> bool:
        # The schema that nothing is valid for; whoever says so has to hear of it.
        return name == "json" and self.json is False

    def _check_choice(self, choice: tuple[str, ...]) -> None:
        name = "structured_outputs.choice"
        if not 1 <= len(choice) <= MAX_CHOICES:
            raise InvalidRequestError(f"{name} must have 1 to {MAX_CHOICES} texts, got {len(choice)}", name)
        total = sum(map(len, choice))
        if total > MAX_TEXT_CHARS:
            text = f"{name} must have at most {MAX_TEXT_CHARS} characters in all, got {total}"
            raise InvalidRequestError(text, name)

    def _check_whitespace(self, kind: str) -> None:
        name = "structured_outputs.whitespace_pattern"
        if self.disable_any_whitespace:
            raise InvalidRequestError(f"{name} excludes disable_any_whitespace", name)
        if kind not in _OF_JSON:
            raise InvalidRequestError(f"{name} requires {' or '.join(_OF_JSON)}", name)


# What vLLM calls it.
StructuredOutputsParams = StructuredOutputs
