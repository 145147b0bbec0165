"""Which modules a name in a quantization config means: exactly, by a part of their names, or by a pattern.

Patterns come from untrusted files and are matched against short names, but Python's matcher can take
exponential time. So only patterns that cannot are accepted: few repetitions, and none of a group.
"""

from __future__ import annotations

import fnmatch
import re
from typing import NamedTuple

from splitserve.engine_core.checkpoint.config.fields import Fields

MAX_PATTERNS = 4096
_MAX_CHARS = 512
_MAX_REPEATS = 4
# An escaped character, a class, the head of a group, or a repetition behind anything.
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?(?:[:=!]|<[=!]))?|[*+?{]|.", re.DOTALL)


class ModulePattern(NamedTuple):
    """Some modules of a model.

    Attributes:
        text: as the file has it.
        expression: matches their names from the start.
    """

    text: str
    expression: re.Pattern[str]

    def matches(self, module: str) -> bool:
        """Whether it means this module, such as "model.layers.0.mlp.up_proj"."""
        return self.expression.match(module) is not None


ALL = ModulePattern("*", re.compile(""))
"""Every module."""


def exactly(name: str) -> ModulePattern:
    """The module of this whole name."""
    return ModulePattern(name, re.compile(re.escape(name) + r"\Z"))


def within(name: str) -> ModulePattern:
    """Modules in whose names this stands between dots, as "mlp.gate" does not in "mlp.gate_proj"."""
    return ModulePattern(name, re.compile(rf"(?:.*\.)?{re.escape(name.strip('.'))}(?:\.|\Z)"))


def wildcard(config: Fields, field: str, text: str) -> ModulePattern:
    """Modules of a name with * for any characters, or in whose names a text without * stands between dots.

    Raises:
        ModelLoadError: it is too long, or has too many wildcards.
    """
    _check_length(config, field, text)
    if not any(character in text for character in "*?["):
        return within(text)
    if text.count("*") > _MAX_REPEATS:
        raise config.error(field, f"may have at most {_MAX_REPEATS} wildcards, got {text!r:.200}")
    return ModulePattern(text, re.compile(fnmatch.translate(text)))


def regular(config: Fields, field: str, text: str) -> ModulePattern:
    """Modules whose names begin with a match of a regular expression.

    Raises:
        ModelLoadError: it is invalid, too long, or may take exponential time.
    """
    _check_length(config, field, text)
    previous, num_repeats = "", 0
    for token in _TOKEN.findall(text):
        if token in ("*", "+", "?", "{"):
            num_repeats += token != "?" or previous not in ("*", "+", "?", "}")
            if (previous == ")" and token != "?") or num_repeats > _MAX_REPEATS:
                raise config.error(
                    field,
                    f"has a pattern with a repeated group or more than {_MAX_REPEATS} repetitions, which may "
                    f"take exponential time: {text!r:.200}",
                )
        previous = token
    try:
        return ModulePattern(text, re.compile(text))
    except (re.error, RecursionError, OverflowError) as error:
        raise config.error(field, f"has an invalid pattern {text!r:.200}: {error}") from error


def _check_length(config: Fields, field: str, text: str) -> None:
    if not 1 <= len(text) <= _MAX_CHARS:
        raise config.error(field, f"must hold names of 1 to {_MAX_CHARS} characters, got {text!r:.200}")


def excluded(config: Fields, field: str) -> tuple[ModulePattern, ...]:
    """Return the modules that a list of names excludes, whole ones or between dots.

    Raises:
        ModelLoadError: it is not a list of names.
    """
    names = config.texts(field)
    if len(names) > MAX_PATTERNS:
        raise config.error(field, f"must hold at most {MAX_PATTERNS} names, got {len(names)}")
    for name in names:
        _check_length(config, field, name)
    return tuple(map(within, names))
