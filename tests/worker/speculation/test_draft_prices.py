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
    assert prices.of_a_draft(2, 3) == FIRST_PRICE


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
