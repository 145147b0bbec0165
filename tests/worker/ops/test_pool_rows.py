"""pool_rows: reference, the same bits whatever the steps and the threads, and what is refused."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch

from splitserve.worker.ops.cpu import ops
from tests.worker.ops.helpers import assert_same_bits

KINDS = ("sum", "weighted_sum", "max")
Kind = Literal["sum", "weighted_sum", "max"]


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def reference(states: torch.Tensor, start: int, kind: Kind) -> torch.Tensor:
    """Of one run without a total before it."""
    x = states.double()
    if kind == "max":
        return x.max(dim=0).values
    return x.sum(dim=0) if kind == "sum" else (x * torch.arange(1, len(x) + 1)[:, None]).sum(dim=0)


@pytest.mark.parametrize("size", [1, 40, 67])
@pytest.mark.parametrize("kind", KINDS)
def test_it_matches_the_reference_in_one_step_and_in_several(
    kind: Kind, size: int, dtype: torch.dtype
) -> None:
    states = torch.randn(30, size).to(dtype)
    totals = torch.full((5, size), float("nan"))
    ops.sampling.pool_rows(totals, states, ints(0, 10, 30), ints(3, 1), ints(0, 0), kind)
    for row, part in ((3, states[:10]), (1, states[10:])):
        torch.testing.assert_close(totals[row].double(), reference(part, 0, kind), rtol=1e-5, atol=1e-4)
    chunked = torch.full((5, size), float("nan"))
    for num_threads, begin, end in ((1, 0, 1), (2, 1, 13), (3, 13, 20)):
        ops.set_num_threads(num_threads)
        part = states[10 + begin : 10 + end]
        ops.sampling.pool_rows(chunked, part, ints(0, end - begin), ints(1), ints(begin), kind)
    assert_same_bits(chunked[1], totals[1])
    assert totals[[0, 2, 4]].isnan().all()


def test_a_nan_stays(dtype: torch.dtype) -> None:
    states, totals = torch.randn(3, 2).to(dtype), torch.zeros(1, 2)
    states[1, 0] = float("nan")
    ops.sampling.pool_rows(totals, states, ints(0, 3), ints(0), ints(0), "max")
    assert totals.isnan().tolist() == [[True, False]]


def test_wrong_arguments_are_refused() -> None:
    totals, states = torch.zeros(2, 8), torch.zeros(3, 8)
    cases: list[tuple[tuple[Any, ...], str]] = [
        ((totals[:, :4], states, ints(0, 3), ints(0), ints(0), "sum"), "totals: expected size 8"),
        ((totals, states, ints(0, 2), ints(0), ints(0), "sum"), "ends: must run from 0 to the 3 rows"),
        ((totals, states, ints(0, 4, 3), ints(0, 1), ints(0, 0), "sum"), "ends: decreases at run 1"),
        ((totals, states, ints(0, 3), ints(2), ints(0), "sum"), "rows: 2 is outside the 2 totals"),
        ((totals, states, ints(0, 3), ints(0), ints(0, 0), "sum"), "positions: expected size 1"),
        ((totals, states, ints(0, 3), ints(0), ints(0), "mean"), "kind: expected 'sum'"),
    ]
    for changed, text in cases:
        with pytest.raises(ValueError, match=text):
            ops.sampling.pool_rows(*changed)
