"""The kernel that drafts from texts that outputs are expected to repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from splitserve.worker._native import load_library
from splitserve.worker.ops.columns import PredictionColumns
from splitserve.worker.ops.drafts.limits import DraftTensors
from splitserve.worker.ops.drafts.ngrams import NgramLengths

if TYPE_CHECKING:
    from torch import Tensor

_lib = load_library("splitserve_cpu")


def draft_predictions(
    step: DraftTensors, predictions: PredictionColumns[Tensor], lengths: NgramLengths
) -> None:
    """Write drafts behind the tokens and drafts of rows, as far as they are allowed to.

    An output is followed through its text from the beginning on. Where it differs, its last tokens are looked
    up there: the longest n-gram counts, then the place where it would be without the difference, then the
    latest.

    Args:
        step: allow_drafts() has been called for this drafter.
        predictions: columns of N rows; those from `place` on are written.
        lengths: of n-grams that have to occur in the text, and that are compared.

    Raises:
        TypeError, ValueError: an argument is wrong; it is named.
    """
    _lib.draft_predictions(step.rows, step.batch, step.drafts, predictions, step.call, lengths)
