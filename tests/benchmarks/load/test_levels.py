"""A tiny run of each level: it comes to its end, and what does not depend on speed is as promised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.load.__main__ import LEVELS
from benchmarks.load.options import DEFAULTS, Options
from benchmarks.load.report import LevelReport, new_report

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(400)]


def run(level: str, options: Options) -> LevelReport:
    report = new_report(level, options.shown())
    LEVELS[level](options, report)
    return report


def kept(report: LevelReport, *what: str) -> None:
    checks = {check.what: check for check in report.checks}
    assert all(checks[name].passed for name in what), report.text()


@pytest.mark.parametrize("level", ["s1", "s2", "s7"])
def test_streams_are_held_open_and_are_right(level: str) -> None:
    options = replace(DEFAULTS[level], streams=20, seconds=1.0, settle_s=0.2, step_ms=100.0, frontends=1)
    report = run(level, options)
    kept(report, "wrong or ended streams")
    assert any(name.endswith("added latency, ms") for name in report.figures)


def test_hang_ups_leave_no_blocks_and_no_descriptors() -> None:
    report = run("s3", Options(rate=20.0, seconds=2.0, step_ms=20.0, frontends=1, streams=50))
    kept(report, "refused, failed or wrong streams", "share of KV blocks in use at the end")
    kept(report, "engine 0: more descriptors", "frontend 0: more descriptors")


def test_an_overload_is_refused_and_what_is_admitted_is_right() -> None:
    report = run("s4", Options(streams=4, seconds=3.0, step_ms=20.0, frontends=1, tokens=20))
    kept(report, "failed or wrong streams")


def test_a_soak_without_kills_is_whole() -> None:
    report = run("s5", replace(DEFAULTS["s5"], streams=8, seconds=3.0, engines=1, frontends=1, step_ms=2.0))
    kept(report, "streams whole and unchanged")
