"""A stage that is told drafts has them behind its tokens, and refuses what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput, StageDrafts
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.batch.input_batch import BatchLimits, InputBatch
from splitserve.worker.speculation.told_drafts import ToldDrafts

LIMITS = BatchLimits(
    max_num_seqs=4, max_num_batched_tokens=64, max_model_len=32, block_size=4, num_blocks=40, vocab_size=50
)


class Stage:
    """The first one, whose row 1 has computed its prompt of three tokens."""

    def __init__(self) -> None:
        self.batch = InputBatch(LIMITS, [0], is_pipelined=True)
        self._told = ToldDrafts(self.batch)
        row = NewRow(1, pack_int32([5, 6, 7]), 3, 0, pack_int32([3, 4]), SequenceSampling(seed=0))
        self.run(3, 3, new_rows=[row], last=0)

    def run(
        self, count: int, known: int, drafts: list[int] | None = None, last: int = 9, **fields: object
    ) -> list[int]:
        """Run a step; returns the tokens that it computes."""
        told = StageDrafts(pack_int32([known]))
        if drafts is not None:
            told = StageDrafts(pack_int32([known]), pack_int32([len(drafts)]), pack_int32(drafts))
        step = SchedulerOutput(
            1,
            pack_int32([1]),
            pack_int32([count]),
            last_token_ids=pack_int32([last]),
            drafts=told,
            **fields,  # type: ignore[arg-type]
        )
        self.batch.apply(step)
        computed: list[int] = self.batch.prepare(step, self._told.take(step)).token_ids.tolist()
        return computed


def test_runs_are_appended_as_far_as_they_counted() -> None:
    stage = Stage()
    assert stage.run(1, 4, [20, 21, 22], last=8) == [8, 20, 21, 22]
    # Two of them counted.
    assert stage.run(1, 7, [30], last=23) == [23, 30]
    assert stage.batch.tokens[1, :7].tolist() == [5, 6, 7, 8, 20, 21, 23]
    # None of these, and nobody drafts.
    assert stage.run(1, 8, last=31) == [31]
    assert (stage.batch.num_tokens[1], stage.batch.num_computed[1]) == (8, 8)


@pytest.mark.parametrize(
    ("known", "drafts", "last", "problem"),
    [
        (5, [], 9, "disagree about how many tokens"),
        (2, [], 9, "disagree about how many tokens"),
        (4, [], 50, "token id of another stage is outside"),
        (4, [20, 50], 9, "a draft is outside the vocabulary"),
        (4, [20, -1], 9, "a draft is outside the vocabulary"),
        (4, [20] * 5, 9, "drafts do not fit"),
    ],
    ids=["ahead", "behind", "token", "draft", "negative", "blocks"],
)
def test_what_does_not_fit_is_the_engines_fault(
    known: int, drafts: list[int], last: int, problem: str
) -> None:
    with pytest.raises(WorkerError, match=problem):
        Stage().run(1, known, drafts, last)


def test_columns_of_other_lengths_and_rows_that_do_not_exist_are_refused() -> None:
    stage = Stage()
    one, two = pack_int32([1]), pack_int32([1, 1])
    for drafts in (StageDrafts(pack_int32([4]), two, two), StageDrafts(pack_int32([4]), one, two)):
        with pytest.raises(WorkerError, match="do not fit"):
            stage._told.take(SchedulerOutput(1, one, one, last_token_ids=one, drafts=drafts))
    missing = SchedulerOutput(1, pack_int32([4]), one, last_token_ids=one, drafts=StageDrafts(one))
    with pytest.raises(WorkerError, match="a row that is not in the batch"):
        stage._told.take(missing)
    assert stage.batch.num_tokens[1] == np.int32(4)
