"""Says which keyword was meant when a call has one that does not exist."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

import msgspec

P = ParamSpec("P")
R = TypeVar("R")


def unknown_name(called: str, name: str, known: Iterable[str]) -> TypeError:
    """Return the error for a call with an unknown keyword, with the nearest known one if any is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; it takes {', '.join(names)}"
    return TypeError(f"{called}() has no argument {name!r}{hint}")


def names_near_keywords(called: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a method refuse an unknown keyword with the name that was probably meant.

    Args:
        called: what the caller called, for the message.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = [name for name in inspect.signature(function).parameters if name != "self"]

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in known:
                    raise unknown_name(called, name, known)
            return function(*args, **kwargs)

        return checked

    return decorate


class NearNamesMeta(msgspec.StructMeta):
    """Metaclass of structs that scripts make: an unknown field is refused with the near one's name."""

    def __call__(cls, *args: object, **kwargs: object) -> object:
        """Make one; what is decoded does not come by here."""
        try:
            return super().__call__(*args, **kwargs)
        except TypeError:
            for name in kwargs:
                if name not in cls.__struct_fields__:
                    raise unknown_name(cls.__name__, name, cls.__struct_fields__) from None
            raise
