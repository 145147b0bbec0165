"""What stands in for flags that are not given: environment variables, then the file of --config."""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Iterable, Mapping

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.arguments import add_flags
from splitserve.engine_core.settings.config_file import read_config_file
from splitserve.engine_core.settings.parser import CommandParser
from splitserve.engine_core.settings.setting import Declared, Value

PREFIX = "SPLITSERVE_"
_SWITCH_WORDS = {"1": True, "true": True, "yes": True, "on": True}
_SWITCH_WORDS |= {"0": False, "false": False, "no": False, "off": False}


def add_settings(parser: CommandParser, settings: Iterable[Declared]) -> None:
    """Add the flags of settings, and --config; environment and file stand in for those that are not given.

    A flag counts more than its environment variable, and that more than the file.

    Args:
        parser: of a command.
        settings: to add; those whose field the parser has as an argument already get no flag.
    """
    many = tuple(settings)
    taken = {action.dest for action in parser._actions}
    add_flags(parser, (each for each in many if each.field not in taken))
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="YAML file of flags, without their dashes; see `splitserve config` (default: none)",
    )
    parser.settings = many
    parser.complete = functools.partial(_complete, parser)


def variable(each: Declared) -> str:
    """Return the environment variable of a setting: SPLITSERVE_MAX_NUM_SEQS for --max-num-seqs."""
    return PREFIX + each.keyword.upper()


def environment_values(settings: Iterable[Declared], environ: Mapping[str, str]) -> dict[str, object]:
    """Return what the environment sets, by field; an empty variable sets nothing.

    Raises:
        ConfigError: a value cannot be read; names the variable.
    """
    values: dict[str, object] = {}
    for each in settings:
        name = variable(each)
        if text := environ.get(name, ""):
            words = text.split() if each.many else [text]
            read = [_read(each, word, name) for word in words]
            values[each.field] = read if each.many else read[0]
    return values


def file_values(settings: Iterable[Declared], path: str) -> dict[str, object]:
    """Return what a YAML file sets, by field.

    Raises:
        ConfigError: the file cannot be read, a key is no flag, or a value has the wrong type; names them.
    """
    by_key = {each.keyword: each for each in settings}
    return {
        by_key[key].field: _of_file(by_key[key], value, f"{key} in {path}")
        for key, value in read_config_file(path, by_key).items()
    }


def _complete(parser: CommandParser, parsed: argparse.Namespace) -> None:
    """Set what is not given to what environment or file say."""
    path = getattr(parsed, "config", "")
    try:
        values = file_values(parser.settings, path) if path else {}
        values |= environment_values(parser.settings, os.environ)
    except ConfigError as error:
        parser.error(str(error))
    for field, value in values.items():
        if not hasattr(parsed, field):
            setattr(parsed, field, value)


def _of_file(each: Declared, value: object, where: str) -> object:
    if isinstance(value, list) != each.many:
        raise ConfigError(f"{where} takes {'a list' if each.many else 'one value'}")
    items = value if isinstance(value, list) else [value]
    read = [_of_yaml(each, item, where) for item in items]
    return read if each.many else read[0]


def _of_yaml(each: Declared, value: object, where: str) -> Value:
    if isinstance(value, bool) and each.type is bool:
        return value
    # Units such as 4K are text, plain numbers are not.
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return _read(each, str(value), where)
    taken = "true or false" if each.type is bool else "text or a number"
    raise ConfigError(f"{where} takes {taken}, not {value!r}")


def _read(each: Declared, text: str, where: str) -> Value:
    if each.type is bool:
        if text.lower() not in _SWITCH_WORDS:
            raise ConfigError(f"{where} takes true or false, got {text!r}")
        return _SWITCH_WORDS[text.lower()]
    try:
        return each.parse(text)
    except (argparse.ArgumentTypeError, ValueError) as error:
        said = str(error) if isinstance(error, argparse.ArgumentTypeError) else f"got {text!r}"
        raise ConfigError(f"{where}: {said}") from None
