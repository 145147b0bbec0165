"""An output is followed through the text that it is expected to repeat, and found again after an edit."""

from __future__ import annotations

import pytest
import torch

from splitserve.worker.ops.columns import Array, PredictionColumns, allocate
from splitserve.worker.ops.drafts.limits import DraftTensors
from splitserve.worker.ops.drafts.ngrams import NgramLengths
from splitserve.worker.ops.drafts.predictions import draft_predictions
from tests.worker.ops.drafts.drafted_rows import SIZES, DraftedRows, N

PROMPT = [1, 2]
TEXT = list(range(10, 30))


class Drafter:
    """One row, with a prediction."""

    def __init__(self, text: list[int], output: list[int] | None = None) -> None:
        self.rows = DraftedRows(PROMPT + (output or []))
        self.columns = allocate(PredictionColumns[Array], N, SIZES)
        self.columns.text[0, : len(text)] = text
        self.columns.num_text[0] = len(text)
        self.columns.num_prompt[0] = self.columns.place_end[0] = len(PROMPT)

    def draft(self, max_drafts: int = 3, before: dict[int, list[int]] | None = None) -> list[int] | None:
        columns = PredictionColumns(*map(torch.from_numpy, self.columns))

        def kernel(step: DraftTensors) -> None:
            draft_predictions(step, columns, NgramLengths(2, 4))

        return self.rows.draft(kernel, max_drafts, before=before)[0]

    def write(self, *tokens: int) -> None:
        self.rows.extend(0, [*tokens])


def test_an_output_that_repeats_the_text_is_drafted_from_its_first_token_to_its_last() -> None:
    drafter = Drafter(TEXT)
    for place in range(0, 20, 3):
        assert drafter.draft() == TEXT[place : place + 3]
        drafter.write(*TEXT[place : place + 3])
    assert drafter.draft() == []


def test_what_is_replaced_left_out_or_added_is_passed_over() -> None:
    drafter = Drafter(TEXT)
    drafter.draft()
    drafter.write(10, 11, 99)
    assert drafter.draft() == []
    drafter.write(13)
    # One token may be chance, two are not.
    assert drafter.draft() == []
    drafter.write(14)
    assert drafter.draft() == [15, 16, 17]
    drafter.write(20, 21)
    assert drafter.draft() == [22, 23, 24]
    drafter.write(22, 88, 88, 23, 24)
    assert drafter.draft() == [25, 26, 27]


def test_of_equal_places_the_one_that_comes_next_counts() -> None:
    text = [5, 6, 7, 8, 5, 6, 7, 9, 5, 6, 7, 4]
    drafter = Drafter(text)
    assert drafter.draft() == [5, 6, 7]
    drafter.write(5, 6, 7)
    assert drafter.draft() == [8, 5, 6]
    drafter.write(8, 5, 6, 7)
    assert drafter.draft(1) == [9]
    # The longer match goes before it.
    drafter.write(8, 5, 6, 7)
    assert drafter.draft(1) == [9]


def test_a_resumed_output_goes_on_where_it_is() -> None:
    assert Drafter(TEXT, output=TEXT[:7]).draft() == TEXT[7:10]
    assert Drafter(TEXT, output=[50, 51, *TEXT[8:12]]).draft() == TEXT[12:15]
    assert Drafter(TEXT, output=[50, 51]).draft() == []


def test_the_prompt_is_not_looked_up() -> None:
    drafter = Drafter([7, 1, 2, 8, 9], output=[2])
    assert drafter.draft() == []


def test_drafts_go_on_behind_those_of_another_drafter() -> None:
    drafter = Drafter(TEXT)
    assert drafter.draft(4, before={0: TEXT[:2]}) == TEXT[:4]
    assert drafter.draft(4, before={0: [40]}) == [40]


def test_a_row_without_prediction_drafts_nothing() -> None:
    assert Drafter([]).draft() == []


def test_wrong_columns_are_named() -> None:
    drafter = Drafter(TEXT)
    columns = PredictionColumns(*map(torch.from_numpy, drafter.columns))

    def kernel(step: DraftTensors) -> None:
        with pytest.raises(ValueError, match="links: expected"):
            draft_predictions(step, columns._replace(links=columns.links[:, :3]), NgramLengths(2, 4))
        with pytest.raises(TypeError, match="num_text"):
            draft_predictions(step, columns._replace(num_text=columns.num_text.long()), NgramLengths(2, 4))

    drafter.rows.draft(kernel)
