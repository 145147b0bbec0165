"""The flags of `splitserve bench`: its own commands."""

from __future__ import annotations

import argparse
import sys

from splitserve.client.commands import BENCH_COMMANDS, add_commands
from splitserve.engine_core.errors import EXIT_CONFIG
from splitserve.engine_core.settings.parser import CommandParser


def fill(parser: CommandParser) -> None:
    """Add its commands."""
    commands = parser.add_subparsers(dest="bench_command", metavar="COMMAND", title="commands")
    add_commands(commands, BENCH_COMMANDS)
    parser.set_defaults(print_bench_help=lambda: parser.print_help(sys.stderr))


def run(args: argparse.Namespace) -> int:
    """Run the command that was named; raises SplitServeError."""
    if args.bench_command is None:
        args.print_bench_help()
        return EXIT_CONFIG
    return {each.name: each.run for each in BENCH_COMMANDS}[args.bench_command](args)
