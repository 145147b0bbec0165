"""`splitserve config`: a file of all settings of a command."""

from __future__ import annotations

import argparse

from splitserve.engine_core.errors import EXIT_OK, ConfigError
from splitserve.engine_core.settings.parser import CommandParser


def fill(parser: CommandParser) -> None:
    """Add its arguments."""
    parser.add_argument(
        "words", nargs="*", metavar="COMMAND", help="such as serve, or bench serve (default: serve)"
    )


def run(args: argparse.Namespace) -> int:
    """Write the file to stdout.

    Raises:
        ConfigError: there is no such command, or it has no settings.
    """
    from splitserve.engine_core.settings.config_file import config_text

    parser: CommandParser = args.root_parser
    for word in args.words or ["serve"]:
        commands = parser.commands()
        if word not in commands:
            raise ConfigError(f"{parser.prog} has no command {word!r}")
        parser = commands[word]
    if not parser.settings:
        raise ConfigError(f"{parser.prog} has no settings")
    print(config_text(parser.prog, parser.settings), end="")
    return EXIT_OK
