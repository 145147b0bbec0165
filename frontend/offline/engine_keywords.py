"""The engine's settings as keywords of LLM, as they are declared for the engine."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeAlias, TypeVar

from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.arguments import flag_words
from splitserve.engine_core.settings.setting import Declared, Settings, Value, declared

P = ParamSpec("P")
R = TypeVar("R")

# What a keyword takes: one value, or several for those that take several.
Given: TypeAlias = Value | Sequence[str] | Mapping[str, Value]


def engine_keywords(config: type[Settings] = EngineConfig) -> dict[str, Declared]:
    """Return the settings that scripts may give, by keyword."""
    return {each.keyword: each for each in declared(config) if each.setting.llm}


def engine_words(keywords: Mapping[str, Declared], given: Mapping[str, Given | None]) -> list[str]:
    """Return the flags of engine-core for keywords that were given; None stands for the default.

    Raises:
        ConfigError: several values were given for one, or a dict that is no JSON.
    """
    values = {
        keywords[name].field: _as_value(keywords[name], value)
        for name, value in given.items()
        if value is not None
    }
    return flag_words(keywords.values(), values)


def _as_value(keyword: Declared, value: Given) -> Value | Sequence[str]:
    """A mapping stands for NAME=VALUE where a setting takes several values, and is JSON elsewhere."""
    if not isinstance(value, Mapping):
        if not keyword.many and not isinstance(value, bool | int | float | str):
            raise ConfigError(f"{keyword.keyword} takes one value, got {value!r:.100}")
        return value
    if keyword.many:
        return [f"{name}={each}" for name, each in value.items()]
    try:
        # Not msgspec's, which writes null for what is no number.
        return json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{keyword.keyword} must be a dict that can be written as JSON: {error}") from None


def shows_keywords(keywords: Mapping[str, Declared]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Show settings in the signature and documentation of a function that takes them as **settings."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        own = list(signature.parameters.values())[:-1]
        shown = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type
            )
            for name, each in keywords.items()
        ]
        function.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
        lines = [f"    {name}: {each.setting.help}" for name, each in keywords.items()]
        function.__doc__ = "\n".join([function.__doc__ or "", "", "Settings of the engine:", *lines])
        return function

    return decorate
