"""All that a measurement of a server is told."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from splitserve.client.bench.datasets.settings import DatasetSettings
from splitserve.client.bench.load.traffic import TrafficSettings
from splitserve.client.bench.results.report_settings import ReportSettings
from splitserve.client.bench.server_settings import ServerSettings
from splitserve.client.sampling_fields import SamplingSettings
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.arguments import given_values, make_settings
from splitserve.engine_core.settings.setting import declared

PARTS = (ServerSettings, DatasetSettings, TrafficSettings, SamplingSettings, ReportSettings)
BENCH_SERVE = tuple(each for part in PARTS for each in declared(part))


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a measurement."""

    server: ServerSettings
    dataset: DatasetSettings
    traffic: TrafficSettings
    sampling: SamplingSettings
    report: ReportSettings

    def fields(self) -> dict[str, object]:
        """Return the fields of every request beside prompt and length."""
        # A random text means nothing, so neither does where its answer would end.
        ends = {"ignore_eos": True} if self.dataset.dataset_name == "random" else {}
        return {**ends, **self.sampling.fields()}


def read_plan(args: argparse.Namespace) -> Plan:
    """Return the settings that were given.

    Raises:
        ConfigError: names the flag and what it takes.
    """
    plan = Plan(
        make_settings(ServerSettings, given_values(args, declared(ServerSettings))),
        make_settings(DatasetSettings, given_values(args, declared(DatasetSettings))),
        make_settings(TrafficSettings, given_values(args, declared(TrafficSettings))),
        make_settings(SamplingSettings, given_values(args, declared(SamplingSettings))),
        make_settings(ReportSettings, given_values(args, declared(ReportSettings))),
    )
    if plan.dataset.dataset_name == "multi_turn" and not plan.server.is_chat:
        raise ConfigError("--dataset-name multi_turn needs --backend openai-chat")
    return plan
