"""Which tokens a row need not read again is followed through blocks that are shared, given on and moved."""

from __future__ import annotations

import numpy as np

from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.batch.input_batch import BatchLimits, InputBatch
from splitserve.worker.speculation.draft_model.coverage import DraftCoverage

NUM_BLOCKS = 8


class Rows:
    """A batch of two rows with blocks of 4 tokens, and what is known of them."""

    def __init__(self) -> None:
        self.batch = InputBatch(BatchLimits(2, 64, 32, 4, NUM_BLOCKS, 50), [0])
        self.coverage = DraftCoverage(self.batch, num_host_blocks=2)

    def step(self, new: NewRow | None = None, **columns: list[int]) -> None:
        packed = {name: pack_int32(column) for name, column in columns.items()}
        step = SchedulerOutput(1, b"", b"", [] if new is None else [new], **packed)  # type: ignore[arg-type]
        self.batch.apply(step)
        self.coverage.follow(step)
        if new is not None:
            self.coverage.enter(new)

    def read(self, row: int, end: int, num_drafts: int = 0) -> None:
        one = np.ones(1, np.int32)
        self.coverage.read(np.array([row]), end * one, num_drafts * one)

    def sample(self, row: int, count: int) -> None:
        self.batch.num_tokens[row] += count

    def start(self, row: int) -> int:
        return int(self.coverage.of(np.array([row]))[0])


def entering(row: int, num_tokens: int, blocks: list[int], num_cached: int = 0) -> NewRow:
    columns = pack_int32(range(num_tokens)), num_tokens, num_cached, pack_int32(blocks)
    return NewRow(row, *columns, SequenceSampling(seed=0))


def reading_nine() -> Rows:
    """Row 0 has read 9 tokens, in blocks 1, 2 and 3, and sampled one."""
    rows = Rows()
    rows.step(entering(0, 9, [1, 2, 3]))
    assert rows.start(0) == 0
    rows.read(0, 9)
    rows.sample(0, 1)
    rows.step()
    assert rows.start(0) == 9
    return rows


def test_of_drafts_those_that_count_are_read() -> None:
    rows = reading_nine()
    for num_counted, start in ((0, 10), (2, 13), (3, 16)):
        rows.read(0, int(rows.batch.num_tokens[0]), num_drafts=2)
        rows.sample(0, num_counted + 1)
        # However many steps go by before it drafts again.
        for _ in range(2):
            rows.step()
            assert rows.start(0) == start
            rows.sample(0, 5 if num_counted == 3 else 0)


def test_a_row_that_finds_blocks_need_not_read_what_others_have() -> None:
    rows = reading_nine()
    rows.step(entering(1, 12, [1, 2, 4], num_cached=8))
    assert rows.start(1) == 8
    # Block 2 was given on, to a row that has not read it.
    rows.step(freed_rows=[0, 1])
    rows.step(entering(0, 5, [2, 3]))
    rows.step(entering(1, 12, [1, 2, 4], num_cached=8))
    assert rows.start(1) == 4


def test_a_block_that_a_row_gets_later_is_unread() -> None:
    rows = reading_nine()
    rows.step(freed_rows=[0])
    rows.step(entering(0, 3, [5]))
    rows.step(block_rows=[0], block_ids=[1])
    rows.step(entering(1, 12, [1, 2, 4], num_cached=8))
    assert rows.start(1) == 0


def test_what_was_read_moves_with_its_block() -> None:
    rows = reading_nine()
    rows.step(moves_from=[2, 6], moves_to=[NUM_BLOCKS, NUM_BLOCKS + 1])
    back = {"moves_from": [NUM_BLOCKS, NUM_BLOCKS + 1], "moves_to": [5, 2]}
    rows.step(entering(1, 13, [1, 5, 2, 4], num_cached=12), **back)
    assert rows.start(1) == 8


def test_a_row_is_not_taken_for_the_one_that_had_its_place() -> None:
    rows = reading_nine()
    rows.read(0, 10, num_drafts=3)
    rows.step(entering(0, 13, [1, 2, 6, 7], num_cached=12), freed_rows=[0])
    assert rows.start(0) == 8


def test_drafts_wait_until_the_model_has_sampled_behind_them() -> None:
    rows = reading_nine()
    rows.read(0, 10, num_drafts=2)
    # In a pipeline, steps of other rows.
    for _ in range(2):
        rows.step()
        assert rows.start(0) == 12
    rows.sample(0, 2)
    assert rows.start(0) == 11


def test_what_a_row_has_read_stays_when_it_leaves_behind_its_drafts() -> None:
    rows = reading_nine()
    rows.sample(0, 3)
    rows.read(0, 13, num_drafts=2)
    rows.step(freed_rows=[0])
    rows.step(entering(1, 14, [1, 2, 3, 4], num_cached=12))
    assert rows.start(1) == 12
