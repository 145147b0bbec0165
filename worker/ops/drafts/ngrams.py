"""The kernel that drafts tokens by prompt lookup: those that followed when a row's end occurred before."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from splitserve.worker._native import load_library
from splitserve.worker.ops.columns import NgramColumns
from splitserve.worker.ops.drafts.limits import DraftTensors

if TYPE_CHECKING:
    from torch import Tensor

_lib = load_library("splitserve_cpu")


class NgramLengths(NamedTuple):
    """Tokens at the end of a row that have to occur before, and that are compared."""

    shortest: int
    longest: int


def draft_ngrams(step: DraftTensors, ngrams: NgramColumns[Tensor], lengths: NgramLengths) -> None:
    """Write drafts behind the tokens and drafts of rows, as far as they are allowed to.

    The longest n-gram that they end with is continued as it was before, the latest time.

    Args:
        step: allow_drafts() has been called for this drafter.
        ngrams: columns of N rows; all are written.
        lengths: as given.

    Raises:
        TypeError, ValueError: an argument is wrong; it is named.
    """
    _lib.draft_ngrams(step.rows, step.batch, step.drafts, ngrams, step.call, lengths)
