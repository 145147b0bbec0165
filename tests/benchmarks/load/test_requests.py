"""The engine's log says when it ended which aborted request; a report says which promise was kept."""

from __future__ import annotations

import json

import pytest

from benchmarks.load.__main__ import parse
from benchmarks.load.options import DEFAULTS
from benchmarks.load.report import new_report
from benchmarks.load.requests import aborts
from benchmarks.load.timed_engine import CHARACTERS, right_text, token_ids


def line(outcome: str, request_id: str, event: str = "request ended") -> str:
    time = "1970-01-01T00:00:12.250+00:00"
    return json.dumps({"time": time, "event": event, "request_id": request_id, "outcome": outcome})


def test_only_aborted_requests_count_by_the_id_they_were_sent_with() -> None:
    log = [line("abort", "cmpl-a-1"), line("length", "cmpl-a-2"), line("abort", "a-3", "else"), "Traceback:"]
    assert aborts(log) == {"a-1": pytest.approx(12.25)}


def test_a_report_passes_if_every_promise_was_kept() -> None:
    report = new_report("s1", {"streams": 3})
    report.at_most("errors", 0, 0)
    report.at_least("goodput", 0.97, 0.95)
    assert report.passed
    report.figures["ITL"] = 2.5
    report.at_most("memory", 61.0, 60.0, " KB")
    assert not report.passed
    assert "NOT KEPT memory: 61 KB (wanted <= 60 KB)" in report.text()


def test_what_is_not_given_is_the_default_of_the_level() -> None:
    level, options, path = parse(["s2", "--streams", "7", "--step-ms", "2.5"])
    assert (level, path) == ("s2", None)
    assert (options.streams, options.step_ms) == (7, 2.5)
    assert options.seconds == DEFAULTS["s2"].seconds


def test_every_token_of_the_timed_engine_is_one_character() -> None:
    assert len(set(token_ids())) == len(CHARACTERS) == 61
    assert right_text(3) == "abc"
    assert len(right_text(200)) == 200
    assert right_text(62)[61] == "a"
