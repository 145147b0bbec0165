"""Runs over a range of one setting, for each of several values of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from benchmarks.simulation.recorded import read_trace
from benchmarks.simulation.report import Report, make_report
from benchmarks.simulation.settings import Settings, make_settings
from benchmarks.simulation.simulator import Outcome, Simulator
from benchmarks.simulation.synthetic import make_trace
from splitserve.engine_core.errors import ConfigError


class Axis(NamedTuple):
    """A setting and the values it takes."""

    key: str
    values: list[str]


class Point(NamedTuple):
    """One run of a sweep: `label` names its line, x its place on it."""

    label: str
    x: str
    report: Report


def simulate(settings: Settings, *, check_integrity: bool = False) -> Outcome:
    """Run once.

    Raises:
        ConfigError: the recorded trace is unreadable.
    """
    workload = settings.workload
    if workload.trace:
        from pathlib import Path

        trace = read_trace(Path(workload.trace))
    else:
        trace = make_trace(workload)
    return Simulator(settings, trace, check_integrity=check_integrity).run()


def parse_pair(text: str) -> tuple[str, str]:
    """Split key=value.

    Raises:
        ConfigError: there is no "=".
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"expected key=value, got {text!r}")
    return key, value


def parse_axis(text: str) -> Axis:
    """Split key=value,value,...

    Raises:
        ConfigError: there is no "=".
    """
    key, values = parse_pair(text)
    return Axis(key, values.split(","))


def sweep(base: Mapping[str, str], x_axis: Axis, lines: Axis | None) -> Iterator[Point]:
    """Run every combination, one line after the other.

    Args:
        base: the settings that stay.
        x_axis: varies along a line.
        lines: tells the lines apart; None for a single one.

    Raises:
        ConfigError: a combination is no valid setting; before anything runs.
    """
    plan = []
    for line in lines.values if lines else [""]:
        for x in x_axis.values:
            chosen = {**base, x_axis.key: x, **({lines.key: line} if lines else {})}
            plan.append((f"{lines.key}={line}" if lines else "", x, make_settings(chosen)))
    for label, x, settings in plan:
        yield Point(label, x, make_report(simulate(settings)))
