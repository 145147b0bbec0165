"""What is read from /metrics and /proc, and how a window's figures and a step's times are put together."""

from __future__ import annotations

import pytest

from benchmarks.breakdown import Sample, counter, role_of, summarise
from benchmarks.step_kernels import OpTimes, label

METRICS = """
# TYPE splitserve:engine_steps_total counter
splitserve:engine_steps_total{engine="a"} 12.0
splitserve:engine_steps_total{engine="b"} 3.5e+01
splitserve:worker_wait_seconds_total{engine="a"} 0.25
"""


def test_counters_are_summed_over_engines() -> None:
    assert counter(METRICS, "engine_steps") == 47.0
    assert counter(METRICS, "worker_wait_seconds") == 0.25
    assert counter(METRICS, "steps") == 0.0


def test_processes_are_known_by_their_module() -> None:
    assert role_of(b"/usr/bin/python3\0-P\0-m\0splitserve.worker.cli\0--rank\x000\0") == "worker"
    assert role_of(b"/usr/bin/python3\0-P\0-m\0splitserve.engine_core.cli\0") == "engine"
    assert role_of(b"/usr/bin/python3\0-m\0splitserve.engine_core.launcher.cli\0serve\0") == ""


def test_figures_are_per_step_and_per_token() -> None:
    begin = Sample(10.0, 100, 1000, 1.0, 0.5, {"worker": 2.0, "engine": 1.0, "frontend": 0.0})
    end = Sample(12.0, 300, 3000, 2.6, 0.6, {"worker": 4.0, "engine": 1.5, "frontend": 0.1})
    assert summarise(begin, end) == pytest.approx(
        {
            "tokens/s": 1000,
            "tokens/step": 10,
            "step": 10_000,
            "compute": 8000,
            "wait": 500,
            "rest": 1500,
            "worker/token": 1000,
            "engine/token": 250,
            "frontend/token": 50,
        }
    )


class Ops:
    """An operation, and what is asked between steps."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def norm(self, x: int) -> None:
        self.calls.append(x)

    def set_num_threads(self, num: int) -> None:
        self.calls.append(num)


def test_operations_are_timed_and_settings_are_not() -> None:
    ops, times = Ops(), OpTimes()
    times.watch(ops)
    ops.norm(1)
    ops.set_num_threads(2)
    assert ops.calls == [1, 2]
    assert list(times.take()) == ["norm"]
    assert times.take() == {}


def test_operations_with_a_matrix_are_told_apart_by_its_shape() -> None:
    weight = type("PackedWeight", (), {"shape": (8, 4)})()
    assert label("linear", (None, None, weight)) == "linear 8x4"
    assert label("gelu", (None,)) == "gelu"
