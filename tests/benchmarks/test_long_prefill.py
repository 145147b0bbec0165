"""The pure parts: gaps inside a window, percentiles, medians over rounds and the table."""

from __future__ import annotations

import pytest

from benchmarks.long_prefill import Figures, Span, Turn, gaps_beside, medians, summarise, table


def turn(name: str, number: int, p99_ms: float, ttft_ms: float = 100.0) -> Turn:
    return Turn(name, number, 1.0, Figures(10.0, 9.0, 10.0, p99_ms, 2 * p99_ms, ttft_ms, ttft_ms, 50.0))


def test_a_gap_counts_once_where_it_overlaps_a_span() -> None:
    times_s = [0.0, 1.0, 3.0, 6.0, 10.0]
    assert gaps_beside(times_s, [Span(2.0, 4.0)]) == [2.0, 3.0]
    assert gaps_beside(times_s, [Span(0.5, 0.6), Span(0.7, 0.8), Span(7.0, 8.0)]) == [1.0, 4.0]
    assert gaps_beside([4.0], [Span(3.0, 9.0)]) == []


def test_a_stall_is_rare_overall_and_not_beside_its_prompt() -> None:
    fast = [i / 100 for i in range(500)]
    stream = [*fast, *(7.99 + time for time in fast)]
    figures = summarise([stream], [Span(1.0, 1.0), Span(5.0, 7.99), Span(9.0, 9.0)])
    assert (figures.itl_p50_ms, figures.itl_p99_ms) == pytest.approx((10, 10))
    assert figures.itl_beside_p99_ms > 2500
    assert figures.itl_max_ms == pytest.approx(3000)
    assert (figures.ttft_p50_ms, figures.ttft_max_ms) == pytest.approx((0, 2990))
    assert figures.tokens_per_s == pytest.approx(500 / 8, rel=0.02)


def test_medians_are_taken_over_a_servers_own_rounds_in_order_of_appearance() -> None:
    turns = [turn("off", 0, 900), turn("peer", 0, 5), turn("off", 1, 100), turn("off", 2, 300)]
    assert {name: row.itl_beside_p99_ms for name, row in medians(turns).items()} == {"off": 300, "peer": 5}
    assert list(medians(turns)) == ["off", "peer"]


def test_the_table_gives_ratios_to_the_first_server() -> None:
    lines = table([turn("off", 0, 400, 100), turn("target 50", 0, 100, 150)]).splitlines()
    assert lines[2] == "| off | 10 | 9 | 10 | 400 | 800 | 100 | 100 | 50 | 1.00 | 1.00 |"
    assert lines[3] == "| target 50 | 10 | 9 | 10 | 100 | 200 | 150 | 150 | 50 | 0.25 | 1.50 |"
    assert len({line.count("|") for line in lines}) == 1
