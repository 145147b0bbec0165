"""What the sampling rank has chosen is in the other ranks' batches too, failures among it."""

from __future__ import annotations

import numpy as np
import torch

from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.batch.agreement import Agreement, Chosen
from splitserve.worker.batch.input_batch import BatchLimits, InputBatch
from splitserve.worker.device.cpu import CpuDevice

LIMITS = BatchLimits(
    max_num_seqs=6, max_num_batched_tokens=64, max_model_len=32, block_size=4, num_blocks=40, vocab_size=50
)
ROWS = [4, 1, 3, 0]


class Post:
    """One rank of a group whose first member speaks before the others listen."""

    size = 2

    def __init__(self, rank: int, said: list[torch.Tensor]) -> None:
        self.rank = rank
        self._said = said

    def settle(self, values: torch.Tensor) -> None:
        if self.rank == 0:
            self._said.append(values.clone())
        else:
            values.copy_(self._said.pop(0))


def make_batch() -> InputBatch:
    batch = InputBatch(LIMITS, [])
    new = [NewRow(row, pack_int32([7, 8]), 2, 0, pack_int32([row]), SequenceSampling(seed=0)) for row in ROWS]
    step = SchedulerOutput(1, pack_int32(ROWS), pack_int32([2] * len(ROWS)), new)
    batch.apply(step)
    batch.prepare(step)
    return batch


def chosen_of(rows: list[int], token_ids: list[int], lengths: list[int], failed: list[int]) -> Chosen:
    return Chosen(np.array(rows, "i4"), np.array(token_ids, "i4"), np.array(lengths, "i4"), failed)


def test_tokens_and_failures_reach_the_other_rank() -> None:
    said: list[torch.Tensor] = []
    leader, follower = make_batch(), make_batch()
    rows = np.array(ROWS, np.int32)
    none = np.empty(0, np.int32)
    # Row 1 fails, row 0 samples nothing yet, row 5 is none of the step's.
    chosen = chosen_of([3, 4], [21, 22], [1, 1], failed=[1, 5])
    Agreement(Post(0, said), CpuDevice(), leader).settle(rows, chosen)  # type: ignore[arg-type]
    Agreement(Post(1, said), CpuDevice(), follower).settle(rows, Chosen(none, none, none, []))  # type: ignore[arg-type]
    assert follower.num_tokens[ROWS].tolist() == [3, 2, 3, 2]
    assert (follower.tokens[4, 2], follower.tokens[3, 2]) == (22, 21)
    assert list(follower.failures) == [1]
    assert leader.num_tokens[ROWS].tolist() == [2, 2, 2, 2], "the leader's runner has appended them itself"


def test_runs_reach_the_other_rank_by_their_lengths_and_last_tokens() -> None:
    said: list[torch.Tensor] = []
    leader, follower = make_batch(), make_batch()
    rows, none = np.array(ROWS, np.int32), np.empty(0, np.int32)
    # The drafts of row 4 stand there before the step.
    follower.tokens[4, 2:5] = [23, 24, 25]
    chosen = chosen_of([3, 4], [21, 22], [1, 3], failed=[1])
    Agreement(Post(0, said), CpuDevice(), leader).settle(rows, chosen, has_drafts=True)  # type: ignore[arg-type]
    nothing = Chosen(none, none, none, [])
    Agreement(Post(1, said), CpuDevice(), follower).settle(rows, nothing, has_drafts=True)  # type: ignore[arg-type]
    assert follower.num_tokens[ROWS].tolist() == [5, 2, 3, 2]
    assert follower.num_computed[[3, 4]].tolist() == [2, 4]
    assert follower.tokens[4, 2:5].tolist() == [23, 24, 22]
    assert list(follower.failures) == [1]


def test_what_a_replay_on_the_first_rank_drew_is_read_as_the_kernel_says_it() -> None:
    # As the kernel leaves them: a NaN, logits that are all -inf, two tokens.
    said = [torch.tensor([-1, -2, 21, 22], dtype=torch.int32)]
    follower, none = make_batch(), np.empty(0, np.int32)
    rows = np.array(ROWS, np.int32)
    Agreement(Post(1, said), CpuDevice(), follower).settle(rows, Chosen(none, none, none, []))  # type: ignore[arg-type]
    assert sorted(follower.failures) == [1, 4]
    assert follower.num_tokens[ROWS].tolist() == [2, 2, 3, 3]
