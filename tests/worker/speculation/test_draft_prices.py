"""A draft costs what it adds to a step, as measured."""

from __future__ import annotations

import pytest

from splitserve.worker.speculation.draft_prices import FIRST_PRICE, DraftPrices


def test_a_price_is_the_time_beyond_a_step_without_drafts_in_tokens() -> None:
    prices = DraftPrices()
    assert prices.of_a_draft(2, 4) == FIRST_PRICE
    # Nothing to compare it with.
    prices.took(2, 4, 0.010)
    assert prices.of_a_draft(2, 4) == FIRST_PRICE
    prices.took(2, 0, 0.010)
    prices.took(2, 4, 0.015)
    # Half a step, in which two tokens are sampled: for four drafts.
    assert prices.of_a_draft(2, 4) == pytest.approx(0.25)
    # Of another number they are taken to cost as much each.
    assert prices.of_a_draft(2, 3) == pytest.approx(0.25)
    assert prices.of_a_draft(4, 3) == pytest.approx(0.5)


def test_a_step_that_was_interrupted_changes_little() -> None:
    prices = DraftPrices()
    for num_drafts in (0, 2):
        for _ in range(20):
            prices.took(1, num_drafts, 0.010 + 0.001 * num_drafts)
        prices.took(1, num_drafts, 5.0)
    assert 0 <= prices.of_a_draft(1, 2) < 0.2


def test_steps_of_too_many_rows_are_not_looked_at() -> None:
    prices = DraftPrices()
    for num_rows in (0, 65):
        prices.took(num_rows, 0, 0.010)
        prices.took(num_rows, 1, 0.020)
    assert prices.of_a_draft(65, 1) == FIRST_PRICE


def test_time_is_told_in_tokens_once_it_is_known_what_a_step_takes() -> None:
    prices = DraftPrices()
    assert prices.in_tokens(2, 0.010) == 0
    prices.took(2, 0, 0.010)
    # Two rows, so two tokens in a step.
    assert prices.in_tokens(2, 0.010) == pytest.approx(2)
    assert prices.in_tokens(65, 0.010) == 0


def test_rows_are_read_ahead_for_half_a_step_at_most() -> None:
    prices = DraftPrices()
    prices.read_ahead(1, 0.010)
    assert prices.num_affordable_reads(8) == 8
    prices.took(1, 0, 0.010)
    prices.read_ahead(1, 0.001)
    assert prices.num_affordable_reads(8) == 5
    prices.read_ahead(1, 0.050)
    assert prices.num_affordable_reads(8) == 3
    # It is tried again some time later, should it have been an accident.
    for _ in range(1000):
        prices.took(1, 0, 0.010)
    assert prices.num_affordable_reads(8) == 8


def test_what_reading_cost_may_fade_without_end() -> None:
    prices = DraftPrices()
    prices.took(1, 0, 0.010)
    # As little as is left of any cost after a million steps without another one.
    prices.read_ahead(1, 5e-324)
    prices.took(1, 0, 0.010)
    assert prices.num_affordable_reads(8) == 8


def test_where_nothing_is_found_a_short_step_is_not_looked_for_drafts_every_time() -> None:
    prices = DraftPrices()
    prices.looked(0.000_020)
    assert prices.num_idle_steps(1) == 0
    prices.took(1, 0, 0.002)
    prices.took(2, 0, 0.010)
    assert prices.num_idle_steps(1) == 4
    assert prices.num_idle_steps(2) == 0
    prices.took(3, 0, 0.000_100)
    assert prices.num_idle_steps(3) == 8
