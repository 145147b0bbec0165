"""What the last stage of a pipeline has drafted goes with the next step of its row, if there is room."""

from __future__ import annotations

import pytest

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.worker_messages import RowDrafts, SchedulerOutput
from tests.engine_core.scheduler.test_apply import answer, begun


def staged(num_stages: int = 2) -> EngineCore:
    """Two requests of three tokens and up to five more, whose first step, number 1, is in flight."""
    return begun(
        SchedulerConfig(
            max_model_len=32, num_blocks=8, block_size=4, num_stages=num_stages, num_speculative_tokens=4
        )
    )


def drafts_of(counts: list[int], token_ids: list[int]) -> RowDrafts:
    return RowDrafts(pack_int32(counts), pack_int32(token_ids))


def told(step: SchedulerOutput | None) -> tuple[list[int], list[int], list[int], list[int]]:
    assert step is not None
    assert step.drafts is not None
    columns = step.rows, step.drafts.num_known_tokens, step.drafts.counts, step.drafts.token_ids
    rows, known, counts, token_ids = (unpack_int32(column).tolist() for column in columns)
    return rows, known, counts, token_ids


def test_drafts_go_with_the_next_step_of_their_row_and_a_run_comes_back() -> None:
    engine = staged()
    engine.apply(answer([0, 1], [4, 5], next_drafts=drafts_of([3, 0], [7, 8, 9])))
    # Each stage has rows of its own.
    assert told(engine.plan()) == ([0], [4], [3], [7, 8, 9])
    assert told(engine.plan()) == ([1], [4], [], [])
    runs = {"run_lengths": pack_int32([2]), "num_drafts": pack_int32([3])}
    # No more is drafted than the request ever needs to compute.
    drafts = drafts_of([4], [1, 2, 3, 4])
    engine.apply(answer([0], [7, 6], step=2, next_drafts=drafts, **runs))
    engine.check_integrity()
    assert told(engine.plan()) == ([0], [6], [1], [1])
    engine.apply(answer([1], [6], step=3))
    assert told(engine.plan()) == ([1], [5], [], [])
    engine.check_integrity()


@pytest.mark.parametrize(
    ("counts", "token_ids"),
    [([1], [4]), ([1, 5], [4] * 6), ([-1, 2], [4]), ([1, 1], [4]), ([1, 1], [4, 50]), ([1, 1], [4, -1])],
    ids=["rows", "too many", "negative", "tokens", "vocabulary", "negative token"],
)
def test_drafts_that_are_malformed_are_the_workers_fault(counts: list[int], token_ids: list[int]) -> None:
    engine = staged()
    with pytest.raises(WorkerError, match="the drafts behind step 1 are not those of 2 rows"):
        engine.apply(answer([0, 1], [4, 5], next_drafts=drafts_of(counts, token_ids)))
    with pytest.raises(WorkerError, match="drafts behind step 1: "):
        engine.apply(answer([0, 1], [4, 5], next_drafts=RowDrafts(b"abc", b"")))
    engine.apply(answer([0, 1], [4, 5]))


def test_drafts_that_nobody_asked_for_are_the_workers_fault() -> None:
    with pytest.raises(WorkerError, match="drafts, which nobody asked for"):
        staged(1).apply(answer([0, 1], [4, 5], next_drafts=drafts_of([1, 0], [7])))


def test_a_row_that_has_no_blocks_for_drafts_cannot_have_computed_any() -> None:
    config = SchedulerConfig(
        max_model_len=32, num_blocks=8, block_size=4, num_stages=2, num_speculative_tokens=4
    )
    engine = begun(config, num_requests=4)
    engine.apply(answer([0, 1, 2, 3], [4, 5, 6, 7], next_drafts=drafts_of([2, 0, 0, 0], [7, 8])))
    assert told(engine.plan()) == ([0, 1], [4, 4], [2, 0], [7, 8])
    runs = {"run_lengths": pack_int32([3, 3]), "num_drafts": pack_int32([2, 2])}
    with pytest.raises(WorkerError, match="has 2 drafts of row 1, whose blocks hold 4 tokens"):
        engine.apply(answer([0, 1], [7, 8, 9, 7, 8, 9], step=2, **runs))
    engine.check_integrity()


@pytest.mark.parametrize(
    ("fills_blocks", "max_tokens", "num_blocks", "given"),
    [(True, 20, 8, [1, 1]), (False, 20, 8, [0, 0]), (True, 2, 8, [0, 0]), (True, 20, 3, [1, 0])],
    ids=["ahead", "told drafts alone", "no more to compute", "one free"],
)
def test_blocks_come_early_for_who_drafts_with_a_cache_of_its_own(
    fills_blocks: bool, max_tokens: int, num_blocks: int, given: list[int]
) -> None:
    config = SchedulerConfig(
        max_model_len=32,
        num_blocks=num_blocks,
        block_size=4,
        num_stages=2,
        num_speculative_tokens=4,
        drafts_fill_blocks=fills_blocks,
    )
    engine = begun(config, max_tokens=max_tokens)
    engine.apply(answer([0, 1], [4, 5]))
    # Each row computes token 4, the last one that fits into its block.
    steps = [engine.plan() for _ in range(2)]
    assert [step and step.max_drafts for step in steps] == [4, 4]
    assert [step and len(unpack_int32(step.block_ids)) for step in steps] == given
    engine.check_integrity()
