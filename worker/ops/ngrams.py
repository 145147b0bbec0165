"""The kernel that drafts tokens by prompt lookup: those that followed when a row's end occurred before."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from splitserve.worker._native import load_library
from splitserve.worker.ops.columns import BatchColumns, NgramColumns

if TYPE_CHECKING:
    from torch import Tensor

_lib = load_library("splitserve_cpu")


class NgramLimits(NamedTuple):
    """What does not change between steps.

    Attributes:
        block_size: tokens per KV block.
        min_ngram, max_ngram: tokens at the end of a row that have to occur before, and that are compared.
        excluded: bits of `features` of rows that do not draft.
        max_tokens: tokens of a step, drafts included.
        max_logits: tokens of a step that may be sampled from, drafts included.
    """

    block_size: int
    min_ngram: int
    max_ngram: int
    excluded: int
    max_tokens: int
    max_logits: int


def draft_ngrams(
    rows: Tensor,
    num_new: Tensor,
    batch: BatchColumns[Tensor],
    drafter: NgramColumns[Tensor],
    call: Tensor,
    limits: NgramLimits,
) -> None:
    """Write drafts behind the tokens of rows that sample, and how many into `num_drafts`.

    A row drafts no more than max_num_computed, its blocks, its width and the step allow for. The longest
    n-gram that its tokens end with is continued as it was before, the latest time. One that has computed all
    it ever has to is marked by -1. Rows that are not in the batch are passed over.

    Args:
        rows: int32 [N], rows of the step first.
        num_new: int32 [N], tokens that the step computes of each.
        batch: columns of N rows; `tokens` are written.
        drafter: columns of N rows; those from `pause` on are written.
        call: int32 [4]: rows of the step, most drafts per row, and, as an answer, rows that are marked or
            have drafts, and drafts.
        limits: as given.

    Raises:
        TypeError, ValueError: an argument is wrong; it is named.
    """
    _lib.draft_ngrams(rows, num_new, batch, drafter, call, limits)
