"""The kernel that drafts what mostly followed when a row's last tokens occurred before."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from splitserve.worker._native import load_library
from splitserve.worker.ops.drafts.limits import DraftTensors

_lib = load_library("splitserve_cpu")

# Tokens that have to agree, at least.
MIN_SUFFIX = 2
# Places that are looked at, the latest ones.
MAX_MATCHES = 64


class SuffixLimits(NamedTuple):
    """How much is drafted, and how many answers are kept.

    Attributes:
        max_depth: tokens that are compared and drafted, together.
        max_factor: most drafts for each token that agrees.
        min_share: of the places, that have to go on like the drafts.
        max_tokens: of all answers, a power of two.
        max_answers: 0 to keep none.
    """

    max_depth: int
    max_factor: float
    min_share: float
    max_tokens: int
    max_answers: int


class SuffixKernels(NamedTuple):
    """What drafts for the rows of a batch, with the memory it keeps of them and of answers.

    Attributes:
        draft: writes drafts behind the tokens and drafts of rows, as far as they are allowed to: what follows
            the longest match of their ends, mostly, in their own texts or in answers of their namespaces.
        enter: takes in a row: row, where its answer begins, and two int64 that are its namespace; 0, 0 for
            none.
        leave: keeps the answer of a row that is still in the batch, as far as its tokens are computed.
        num_answers: how many are kept.
    """

    draft: Callable[[], None]
    enter: Callable[[int, int, int, int], None]
    leave: Callable[[int], None]
    num_answers: Callable[[], int]


def suffix_kernels(step: DraftTensors, limits: SuffixLimits) -> SuffixKernels:
    """Return kernels that keep no reference to `step`, which has to live as long.

    Args:
        step: allow_drafts() is called before each draft().
        limits: as given.

    Raises:
        TypeError, ValueError: an argument is wrong; it is named.
    """
    sizes = (limits.max_depth, limits.max_tokens, limits.max_answers)
    shares = (limits.max_factor, limits.min_share)
    kernels: SuffixKernels = SuffixKernels._make(
        _lib.suffix_drafter(step.rows, step.batch, step.drafts, step.call, sizes, shares)
    )
    return kernels
