"""`splitserve completion`: a script by which a shell completes commands and flags."""

from __future__ import annotations

import argparse

from splitserve.engine_core.errors import EXIT_OK
from splitserve.engine_core.settings.parser import CommandParser


def fill(parser: CommandParser) -> None:
    """Add its arguments."""
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="which shell")


def run(args: argparse.Namespace) -> int:
    """Write the script to stdout."""
    import shtab

    _fill_all(args.root_parser)
    print(shtab.complete(args.root_parser, args.shell))
    return EXIT_OK


def _fill_all(parser: CommandParser) -> None:
    for each in parser.commands().values():
        _fill_all(each)
