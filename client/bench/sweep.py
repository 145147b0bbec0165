"""`splitserve bench sweep`: a server at several request rates and concurrencies."""

# No "from __future__ import annotations": --help would then have to evaluate each declaration.
import argparse
import dataclasses
import math
from typing import Annotated

import msgspec

from splitserve.client.bench.load.traffic import MAX_CONCURRENCY, TrafficSettings
from splitserve.client.bench.plan import BENCH_SERVE, read_plan
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.arguments import given_values, make_settings
from splitserve.engine_core.settings.parser import CommandParser
from splitserve.engine_core.settings.setting import Setting, Settings, declared
from splitserve.engine_core.settings.sources import add_settings

DEFAULT_RATES = (1.0, 2.0, 4.0, 8.0)


class SweepSettings(Settings, frozen=True, kw_only=True):
    """What is different in each measurement of a sweep."""

    sweep_request_rate: Annotated[
        tuple[float, ...],
        Setting(
            "request rates to measure, in place of --request-rate",
            "sweep",
            metavar="RPS",
            default="1 2 4 8 if no --sweep-max-concurrency is given",
        ),
    ] = ()
    sweep_max_concurrency: Annotated[
        tuple[int, ...],
        Setting(
            "limits of requests in flight to measure, in place of --max-concurrency",
            "sweep",
            low=1,
            high=MAX_CONCURRENCY,
            default="--max-concurrency",
        ),
    ] = ()

    def validate(self) -> None:
        """Check every value against its declaration, and the constraints between settings.

        Raises:
            ConfigError: names the flag and what it takes.
        """
        super().validate()
        if not all(rate > 0 for rate in self.sweep_request_rate):
            raise ConfigError("--sweep-request-rate takes rates above 0, or inf")

    def traffics(self, base: TrafficSettings) -> list[TrafficSettings]:
        """Return the load of each measurement, otherwise as the base."""
        limits = self.sweep_max_concurrency or (None,)
        rates = self.sweep_request_rate or ((math.inf,) if self.sweep_max_concurrency else DEFAULT_RATES)
        return [
            msgspec.structs.replace(base, request_rate=rate, max_concurrency=limit)
            for limit in limits
            for rate in rates
        ]


_TAKEN = ("request_rate", "max_concurrency", "ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
SWEEP = (*declared(SweepSettings), *(each for each in BENCH_SERVE if each.field not in _TAKEN))


def fill(parser: CommandParser) -> None:
    """Add its flags."""
    add_settings(parser, SWEEP)


def run(args: argparse.Namespace) -> int:
    """Measure at every point, print a line of each; raises SplitServeError."""
    plan = read_plan(args)
    settings = make_settings(SweepSettings, given_values(args, declared(SweepSettings)))

    from splitserve.client.bench.sweep_run import sweep

    return sweep([dataclasses.replace(plan, traffic=each) for each in settings.traffics(plan.traffic)])
