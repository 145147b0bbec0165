"""The plot: a panel per model, a line per engine, and the same file for the same figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.compare.results import Turn
from benchmarks.compare.server import percentile, summarise
from benchmarks.compare.stream_client import Completion

pytest.importorskip("matplotlib")


def test_models_and_engines_over_http_are_drawn(tmp_path: Path) -> None:
    from benchmarks.compare.plot import draw

    turns = [
        Turn(engine, model, scenario, 0, 100.0, 1.0)
        for engine in ("splitserve", "vllm")
        for model in ("tiny", "small")
        for scenario in ("single", "c1", "c64")
    ]
    assert draw(turns, tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text()
    assert text.count("<!-- vllm -->") == 2
    assert "<!-- small -->" in text


def test_without_figures_over_http_nothing_is_drawn(tmp_path: Path) -> None:
    from benchmarks.compare.plot import draw

    assert not draw([Turn("vllm", "tiny", "single", 0, 1.0, 1.0)], tmp_path / "plot.svg")
    assert not list(tmp_path.iterdir())


def test_a_turns_rate_is_that_of_all_streams_together() -> None:
    streams = [Completion(10.0, 12.0, [11.0, 11.5, 12.0], 3, 8), Completion(11.0, 14.0, [12.0, 14.0], 2, 8)]
    rate, details = summarise(streams, client_s=0.4, server_s=6.0)
    assert rate == 5 / 4
    assert details == {
        "seconds": 4.0,
        "tokens_per_request": 2.5,
        "prompt_tokens_per_request": 8,
        "ttft_p50_ms": 1000,
        "itl_p50_ms": 500,
        "itl_p99_ms": 2000,
        "client_cores": 0.1,
        "server_cores": 1.5,
    }


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2
    assert percentile([float(i) for i in range(100)], 0.99) == 99
    assert percentile([], 0.5) == 0
