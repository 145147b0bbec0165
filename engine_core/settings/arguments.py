"""How settings become flags: added to a parser, read from its result, written as another process's flags."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.setting import Declared, Settings

S = TypeVar("S", bound=Settings)


def add_flags(parser: argparse.ArgumentParser, settings: Iterable[Declared]) -> None:
    """Add the flags, in groups titled as the settings say.

    A flag that is not given has no entry in the parsed arguments.

    Args:
        parser: of a command.
        settings: to add.
    """
    groups: dict[str, argparse._ArgumentGroup] = {}
    for each in settings:
        title = each.setting.group
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add_flag(groups[title], each)


def given_values(args: argparse.Namespace, settings: Iterable[Declared]) -> dict[str, object]:
    """Return the given values, by field."""
    return {each.field: getattr(args, each.field) for each in settings if hasattr(args, each.field)}


def make_settings(config: type[S], values: Mapping[str, object]) -> S:
    """Create a configuration from values by field, and check it.

    Raises:
        ConfigError: a value has the wrong type or is out of range; names the flag.
    """
    try:
        made = msgspec.convert(values, config)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from None
    made.validate()
    return made


def flag_words(settings: Iterable[Declared], values: Mapping[str, object]) -> list[str]:
    """Return the command-line words that set these values, given by field; other fields are left out."""
    return [word for each in settings if each.field in values for word in _words(each, values[each.field])]


def _add_flag(group: argparse._ArgumentGroup, each: Declared) -> None:
    setting = each.setting
    default = f" (default: {each.shown_default})" if each.shown_default else ""
    text = (setting.help + default).replace("%", "%%")
    if each.type is bool:
        switch = argparse.BooleanOptionalAction if setting.negatable else "store_true"
        group.add_argument(each.flag, dest=each.field, action=switch, default=argparse.SUPPRESS, help=text)
        return
    group.add_argument(
        *([setting.alias] if setting.alias else []),
        each.flag,
        dest=each.field,
        action="extend" if each.many else "store",
        type=each.parse,
        metavar=each.metavar,
        nargs="+" if each.many else None,
        default=argparse.SUPPRESS,
        help=text,
    )


def _words(each: Declared, value: object) -> list[str]:
    if each.type is bool:
        return [each.flag if value else each.flag.replace("--", "--no-", 1)]
    values = value if isinstance(value, list | tuple) else [value]
    return [f"{each.flag}={item}" for item in values]
