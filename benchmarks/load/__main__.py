"""Load levels of a server with a simulated model.

Usage: python -m benchmarks.load LEVEL [--streams N] [--seconds S] ... [--json FILE]

s1  very many open streams of a token per second: memory per stream, added latency
s2  many tokens per second: does the engine wait for anybody, is the order kept, times between tokens
s3  new requests all the time, of which 30 % hang up: does anything leak, how soon is a row free
s4  three times the load that the server can bear: goodput, refusals, and how soon it is over
s5  streams of all lengths while a random engine is killed now and then: does each end as if nothing had been
s7  a fifth of the clients reads a byte per second, a twentieth is gone: do the others notice

Starts engines, frontends and clients of its own, on loopback. Prints the figures and what was promised of
them; ends with status 1 if a promise was not kept. Clients share the machine with the server: what they cost
is among the figures.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path

import msgspec

from benchmarks.load import overload, requests, soak, streams
from benchmarks.load.options import DEFAULTS, Options
from benchmarks.load.report import LevelReport, new_report

LEVELS: dict[str, Callable[[Options, LevelReport], None]] = {
    "s1": streams.s1,
    "s2": streams.s2,
    "s3": requests.s3,
    "s4": overload.s4,
    "s5": soak.s5,
    "s7": streams.s7,
}


def run(level: str, options: Options) -> LevelReport:
    """Run one level."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    report = new_report(level, options.shown())
    LEVELS[level](options, report)
    return report


def parse(arguments: Sequence[str] | None) -> tuple[str, Options, Path | None]:
    """Read the command line; what is not given is the level's own default."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("level", choices=LEVELS)
    for field in fields(Options):
        kind = type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, metavar=kind.__name__)
    parser.add_argument("--json", type=Path, help="file for the report")
    flags = vars(parser.parse_args(arguments))
    given = {field.name: flags[field.name] for field in fields(Options) if flags[field.name] is not None}
    return flags["level"], replace(DEFAULTS[flags["level"]], **given), flags["json"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    level, options, path = parse(arguments)
    report = run(level, options)
    print(report.text(), flush=True)
    if path:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
