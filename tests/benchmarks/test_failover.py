"""What needs no server: gaps, shares and times of a fault, and what the command line takes."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest

from benchmarks.failover.__main__ import main, without_cut_off
from benchmarks.failover.outcome import HEAD, Outcome, judge, line, net_gap_s, quantile
from benchmarks.failover.scenarios import SCENARIOS
from benchmarks.failover.watch import Watch, pss_kb
from tests.history import Choice, History
from tests.system.nemesis.asks import greedy_asks
from tests.system.nemesis.play import Run


def history(*times_s: float, text: str = "x") -> History:
    made = History()
    for time_s in times_s:
        made.add(time_s, 0, Choice(text))
    made.add(times_s[-1], 0, Choice(finish_reason="stop"))
    return made


def test_gaps_are_what_the_fault_added() -> None:
    assert net_gap_s(history(1, 2, 3, 8, 9), history(1, 2, 3, 4, 5), 3.5) == 4.0
    assert net_gap_s(history(1, 2, 3), history(1, 2, 3), 2.5) == 0.0
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert math.isnan(quantile([], 0.5))


def test_a_run_is_judged_by_its_histories_and_by_the_watch() -> None:
    watch = Watch("http://127.0.0.1:1")
    watch.probes = [
        (9.0, 9.1, 200),
        (10.1, 10.2, 503),
        (10.4, 10.6, 200),
        (10.6, 10.9, 503),
        (11.0, 11.5, 200),
    ]
    asks = greedy_asks(2, 4)
    reference = Run(asks, [history(8, 9, 12), history(8, 9, 12)])
    seen = Run(asks, [history(8, 9, 13), history(8, 9, text="y")], fault_s=10.0)
    outcome = judge(seen, reference, watch)
    assert (outcome.num_streams, outcome.num_open, outcome.num_whole, outcome.num_identical) == (2, 1, 2, 1)
    assert outcome.gaps_s == [3.0]
    times = [outcome.told_s, outcome.ready_s]
    assert [round(each, 3) for each in times if each is not None] == [0.2, 1.5]
    shown = line("kill", [outcome])
    assert len(shown) == len(HEAD)
    assert "50.0%" in shown


def test_what_was_not_seen_is_left_blank() -> None:
    assert "nan" not in line("restart", [Outcome()])


def test_the_memory_of_a_process_that_has_ended_is_none() -> None:
    assert pss_kb([os.getpid()]) > 1000
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert pss_kb([process.pid]) == 0


def test_streams_whose_connections_broke_can_be_left_out() -> None:
    asks = greedy_asks(2, 4)
    cut = History()
    cut.was_cut_off = True
    run, reference = Run(asks, [cut, history(1, 2)]), Run(asks, [history(1, 2), history(1, 2)])
    seen, expected = without_cut_off(run, reference)
    assert (seen.histories, seen.asks) == ([run.histories[1]], [asks[1]])
    assert expected.histories == [reference.histories[1]]


def test_a_scenario_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["restart", "typo", "--runs", "1"])
    assert "there is no scenario typo; there are kill-engine" in capsys.readouterr().err


def test_every_scenario_says_what_it_does() -> None:
    assert all(scenario.what for scenario in SCENARIOS.values())
    assert all(scenario.asks(3) for scenario in SCENARIOS.values())
