"""`splitserve bench latency` and `throughput` on an engine of fake tokens."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from splitserve.engine_core.launcher.cli import main

pytestmark = pytest.mark.system

ENGINE = ["--executor", "simulated", "--num-threads", "1"]


def test_the_latency_of_a_batch_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = tmp_path / "figures.json"
    sizes = ["--input-len", "8", "--output-len", "4", "--batch-size", "3"]
    counts = ["--num-iters", "4", "--num-iters-warmup", "1", "--output-json", str(figures)]
    assert main(["bench", "latency", *sizes, *counts, *ENGINE]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^Avg latency: [0-9.e-]+ seconds$", out, re.MULTILINE)
    assert re.search(r"^99% percentile latency: [0-9.e-]+ seconds$", out, re.MULTILINE)
    found = json.loads(figures.read_text())
    assert len(found["latencies"]) == 4
    assert found["avg_latency"] == pytest.approx(sum(found["latencies"]) / 4)


def test_the_throughput_of_a_dataset_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = tmp_path / "figures.json"
    dataset = ["--num-prompts", "10", "--random-input-len", "20", "--random-output-len", "5"]
    flags = ["--output-json", str(figures), "--disable-tqdm", "--num-warmups", "2"]
    assert main(["bench", "throughput", *dataset, *flags, *ENGINE]) == 0
    out = capsys.readouterr().out
    assert "Total num prompt tokens:  200\nTotal num output tokens:  50\n" in out
    found = json.loads(figures.read_text())
    assert found["num_requests"] == 10
    assert found["requests_per_second"] == pytest.approx(10 / found["elapsed_time"])
    shown = re.search(r"^Throughput: ([0-9.]+) requests/s, ([0-9.]+) total tokens/s", out, re.MULTILINE)
    assert shown is not None
    assert float(shown[2]) == pytest.approx(found["tokens_per_second"], abs=0.01)


def test_conversations_are_refused_where_all_requests_begin_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "throughput", "--dataset-name", "multi_turn"]) == 2
    assert "is for `bench serve`" in capsys.readouterr().err
