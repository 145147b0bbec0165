"""The benchmark of linear: its limits, its turns, and that it runs."""

import itertools
import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import cpu_linear
from benchmarks.cpu_linear import in_turns, result
from splitserve.worker.ops.cpu import ops


@pytest.mark.parametrize(
    ("read_s", "multiply_s", "share"), [(2e-6, 1e-6, 0.5), (1e-6, 3e-6, 0.75), (0, 4e-6, 1)]
)
def test_the_roofline_is_the_longer_of_reading_and_multiplying(
    read_s: float, multiply_s: float, share: float
) -> None:
    line = result(
        "m", 1, ours_s=[9e-6, 4e-6, 5e-6], torch_s=[8e-6], read_s=read_s, multiply_s=multiply_s, flop=8000
    )
    assert line.share_of_roofline == pytest.approx(share)
    assert (line.us, line.median_us, line.ratio) == pytest.approx((4, 5, 0.5))
    assert line.gflop_per_s == pytest.approx(2)


def test_every_round_begins_with_a_pause_and_times_each_call_once(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[object] = []
    monkeypatch.setattr(cpu_linear.time, "sleep", events.append)
    ticks = itertools.count()
    calls = [lambda: events.append("a"), lambda: events.append("b")]
    assert in_turns(calls, 0.0, lambda: float(next(ticks)), 0.25) == [[1.0] * 3, [1.0] * 3]
    assert events == ["a", "b", *[0.25, "a", "b"] * 3]


@pytest.mark.parametrize("form", ["plain", "int8", "int4"])
def test_runs(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "linear.json"
    monkeypatch.setattr(cpu_linear, "COLD_BYTES", 1 << 20)
    arguments = ["--only=demo qkv", "--cpu-time", "--seconds=0", "--tokens=1,32", f"--json={file}"]
    monkeypatch.setattr(sys, "argv", ["cpu_linear", f"--weights={form}", *arguments])
    threads = ops.num_threads(), torch.get_num_threads()
    try:
        cpu_linear.main()
    finally:
        ops.set_num_threads(threads[0])
        torch.set_num_threads(threads[1])
    cold, hot = json.loads(file.read_text())["results"]
    assert cold["read_us"] > 0
    assert hot["read_us"] == 0
    for line in (cold, hot):
        limit = max(line["read_us"], line["multiply_us"])
        assert line["share_of_roofline"] == pytest.approx(limit / line["us"])
