"""edit_logits against a plain loop over the edits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops

VOCAB = 50


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_values_are_added_to_the_logits_of_their_rows() -> None:
    logits = torch.randn(4, VOCAB)
    expected = logits.clone()
    edits = {3: {7: 1.5, 0: -2.0}, 1: {}, 0: {49: -math.inf, 8: 100.0, 9: 0.25}}
    for row, values in edits.items():
        for token, value in values.items():
            expected[row, token] += value
    token_ids = [token for values in edits.values() for token in values]
    added = torch.tensor([value for values in edits.values() for value in values.values()])
    ops.sampling.edit_logits(logits, int32(3, 1, 0), int32(0, 2, 2, 5), int32(*token_ids), added)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("values", [(-math.inf, 5.0, -math.inf), (5.0, -math.inf, -math.inf)])
def test_a_forbidden_token_stays_so_in_any_order(values: tuple[float, ...]) -> None:
    for logit in (1.0, -math.inf, math.inf):
        logits = torch.full((1, 3), logit)
        ops.sampling.edit_logits(logits, int32(0), int32(0, 3), int32(1, 1, 1), torch.tensor(values))
        assert logits.tolist() == [[logit, -math.inf, logit]]


def test_a_nan_is_not_forbidden() -> None:
    logits = torch.full((1, 2), math.nan)
    ops.sampling.edit_logits(logits, int32(0), int32(0, 2), int32(0, 1), torch.tensor([-math.inf, 1.0]))
    assert logits.isnan().all()


def test_rows_may_be_strided() -> None:
    wide = torch.zeros(3, 20)
    ops.sampling.edit_logits(wide[:, 5:15], int32(2), int32(0, 1), int32(9), torch.tensor([1.0]))
    assert wide.nonzero().tolist() == [[2, 14]]


@pytest.mark.parametrize(
    ("message", "rows", "ends", "token_ids"),
    [
        ("rows: 2 is not", (0, 2), (0, 1, 2), (0, 0)),
        ("rows: -1 is not", (-1, 0), (0, 1, 2), (0, 0)),
        ("cu_edits: must begin", (0, 1), (0, 1, 1), (0, 0)),
        ("cu_edits: must begin", (0, 1), (1, 1, 2), (0, 0)),
        ("cu_edits: must not decrease", (0, 1), (0, 3, 2), (0, 0)),
        ("cu_edits: expected size 3", (0, 1), (0, 2), (0, 0)),
        ("token_ids: 9 is not", (0, 1), (0, 1, 2), (0, 9)),
        ("token_ids: -1 is not", (0, 1), (0, 1, 2), (-1, 0)),
        ("values: expected size 1", (0, 1), (0, 1, 1), (0,)),
    ],
)
def test_wrong_arguments_change_nothing(
    message: str, rows: tuple[int, ...], ends: tuple[int, ...], token_ids: tuple[int, ...]
) -> None:
    logits = torch.zeros(2, 9)
    with pytest.raises(ValueError, match=message):
        ops.sampling.edit_logits(logits, int32(*rows), int32(*ends), int32(*token_ids), torch.ones(2))
    assert not logits.any()
