"""The machine's limits: what they mean for a model, and that the program which reads memory runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.compare import limits
from benchmarks.compare.scenarios import OFFLINE
from benchmarks.compare.shapes import SHAPES


def test_a_token_reads_every_weight_once() -> None:
    assert limits.decode_floor_tok_s(30.0, 300_000_000) == pytest.approx(100)


def test_a_prompt_token_takes_two_operations_per_weight_of_the_layers() -> None:
    shape = SHAPES["small"]
    weights = shape.num_parameters - 49152 * 576
    assert limits.prefill_ceiling_tok_s(400.0, shape) == pytest.approx(400e9 / (2 * weights))


def test_the_bandwidth_program_is_built_once_and_prints_a_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READ_MIB", 64)
    assert 0.1 < limits.read_gb_per_s(tmp_path) < 10_000
    built = (tmp_path / "read_bandwidth").stat().st_mtime_ns
    limits.build(tmp_path)
    assert (tmp_path / "read_bandwidth").stat().st_mtime_ns == built


def test_rates_count_what_the_scenario_says() -> None:
    assert OFFLINE["throughput"].rate(2.0, 0.0) == 32 * 64 / 2
    assert OFFLINE["prefill"].rate(2.0, 0.0) == 512
    assert OFFLINE["single"].rate(1.0, 0.1) == pytest.approx(63 / 0.9)
