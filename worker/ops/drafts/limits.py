"""The kernels that say how many tokens each row of a step may draft. N: rows of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from splitserve.worker._native import load_library
from splitserve.worker.ops.columns import AccountColumns, BatchColumns, DraftColumns

if TYPE_CHECKING:
    from torch import Tensor

_lib = load_library("splitserve_cpu")

# Places in the column `call`, which tells all kernels of drafts about a step and is told how far it is: rows
# of the step, most drafts of each, drafts that there is still room for, rows that have ended, drafts so far,
# rows that the next drafter may extend.
NUM_ROWS, MAX_DRAFTS, LEFT, NUM_ENDED, NUM_DRAFTS, NUM_ALLOWED, CALL_SIZE = range(7)


class DraftTensors(NamedTuple):
    """What every kernel of drafts takes.

    Attributes:
        rows: int32 [N], rows of the step first.
        batch: columns of N rows; drafters write `tokens`.
        drafts: columns of N rows.
        call: int32 [CALL_SIZE], see above.
    """

    rows: Tensor
    batch: BatchColumns[Tensor]
    drafts: DraftColumns[Tensor]
    call: Tensor


class DraftLimits(NamedTuple):
    """What does not change between steps.

    Attributes:
        block_size: tokens per KV block.
        excluded: bits of `features` of rows that do not draft.
        max_tokens: tokens of a step, drafts included.
        max_logits: tokens of a step that may be sampled from, drafts included.
    """

    block_size: int
    excluded: int
    max_tokens: int
    max_logits: int


def begin_drafts(step: DraftTensors, num_new: Tensor, limits: DraftLimits) -> None:
    """Find how many tokens each row of a step may draft, before any is drafted.

    `room` is what max_num_computed, the row's blocks and the step allow for, 0 of rows that do not sample. A
    row that has computed all it ever has to is marked by -1 in `num_drafts`. Rows that are not in the batch
    are passed over.

    Args:
        step: its `call` says rows and most drafts, and gets the rest.
        num_new: int32 [N], tokens that the step computes of each of `rows`.
        limits: as given.

    Raises:
        TypeError, ValueError: an argument is wrong; it is named.
    """
    _lib.begin_drafts(step.rows, num_new, step.batch, step.drafts, step.call, limits)


def allow_drafts(step: DraftTensors, account: AccountColumns[Tensor]) -> None:
    """Find how many tokens one drafter may put behind what each row has drafted so far, into `allowed`.

    A row that could draft and pauses gets one step nearer to the end of its pause.

    Raises:
        TypeError, ValueError: an argument is wrong; it is named.
    """
    _lib.allow_drafts(step.rows, step.batch, step.drafts, account, step.call)
