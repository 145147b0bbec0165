"""The flags of `splitserve bench serve`."""

from __future__ import annotations

import argparse

from splitserve.client.bench.plan import BENCH_SERVE, read_plan
from splitserve.engine_core.settings.parser import CommandParser
from splitserve.engine_core.settings.sources import add_settings


def fill(parser: CommandParser) -> None:
    """Add its flags."""
    add_settings(parser, BENCH_SERVE)


def run(args: argparse.Namespace) -> int:
    """Measure a server; raises SplitServeError."""
    plan = read_plan(args)

    from splitserve.client.bench.serve import bench_serve

    return bench_serve(plan)
