"""Ratios are taken within a round; what is saved comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.compare.results import (
    LIMIT,
    Results,
    Start,
    Turn,
    best_of,
    by_round,
    cells,
    engines,
    load,
    paired_ratio,
)


def turn(engine: str, number: int, tok_s: float, scenario: str = "single", model: str = "tiny") -> Turn:
    return Turn(engine, model, scenario, number, tok_s, 1.0, details={"repeats": 1.0})


def test_a_ratio_pairs_the_figures_of_a_round() -> None:
    # The machine was twice as fast in round 1: medians alone would say 1.0 or 4.0.
    assert paired_ratio({0: 10, 1: 20, 2: 10}, {0: 5, 1: 10, 2: 5}) == 2
    assert paired_ratio({0: 10, 1: 20, 2: 90}, {0: 5, 2: 10, 3: 1}) == pytest.approx(5.5)


def test_without_a_common_round_there_is_no_ratio() -> None:
    assert paired_ratio({0: 10.0}, {1: 5.0}) is None
    assert paired_ratio({}, {}) is None


def test_the_best_peer_may_be_another_one_in_each_round() -> None:
    assert best_of([{0: 1, 1: 5}, {0: 3, 1: 2}]) == {0: 3, 1: 5}
    assert best_of([{0: 1, 1: 5}, {1: 2}]) == {1: 5}
    assert best_of([]) == {}


def test_figures_are_found_by_engine_model_and_scenario() -> None:
    turns = [
        turn("a", 0, 1),
        turn("b", 0, 2),
        turn("a", 1, 3),
        turn("a", 0, 9, "c1"),
        turn("a", 0, 8, model="m"),
    ]
    assert by_round(turns, "a", "tiny", "single") == {0: 1, 1: 3}
    assert cells(turns) == [("tiny", "single"), ("tiny", "c1"), ("m", "single")]


def test_the_machines_limit_stands_last() -> None:
    assert engines([turn(LIMIT, 0, 1), turn("a", 0, 1), turn("b", 0, 1)]) == ["a", "b", LIMIT]


def test_saved_results_come_back(tmp_path: Path) -> None:
    results = Results({"cores": "2"}, {"vllm": "not installed"}, [turn("a", 0, 1.5)])
    results.starts.append(Start("a", "tiny", 1.0, 10, 5, 0.0))
    results.save(tmp_path / "results.json")
    assert load(tmp_path / "results.json") == results
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
