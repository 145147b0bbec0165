"""A worker's answer is checked before it is believed."""

from __future__ import annotations

import msgspec
import pytest

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32, unpack_int64
from splitserve.engine_core.ipc.messages import AddRequest, Drafted, FinishReason, StepOutputs
from splitserve.engine_core.ipc.wire import DraftCounts, ModelInfo, TokenLogprobs
from splitserve.engine_core.ipc.worker_messages import DrafterEnds, ModelRunnerOutput, RowError
from splitserve.engine_core.sequence_sampling import SequenceSampling

FRONTEND = b"frontend"


@pytest.fixture
def engine() -> EngineCore:
    """Two requests of three tokens, whose first step, number 1, is in flight."""
    return begun(SchedulerConfig(max_model_len=32, num_blocks=8))


@pytest.fixture
def drafting() -> EngineCore:
    """The same, but of step 2, in which rows may draft two tokens each."""
    engine = begun(SchedulerConfig(max_model_len=32, num_blocks=8, num_speculative_tokens=2))
    engine.apply(answer([0, 1], [4, 5]))
    engine.take_outputs()
    step = engine.plan()
    assert step is not None
    assert step.max_drafts == 2
    return engine


def begun(config: SchedulerConfig, num_requests: int = 2, max_tokens: int = 5) -> EngineCore:
    model = ModelInfo("path", "Architecture", "float32", 50, 32, [0])
    engine = EngineCore(config, model, 1, ManualClock())
    for handle in range(10, 10 + num_requests):
        sampling = SequenceSampling(seed=1, max_tokens=max_tokens)
        engine.add(FRONTEND, AddRequest(handle, "r", pack_int32([1, 2, 3]), sampling))
    assert engine.plan() is not None
    engine.take_outputs()
    return engine


def answer(rows: list[int], token_ids: list[int], step: int = 1, **fields: object) -> ModelRunnerOutput:
    return ModelRunnerOutput(step, pack_int32(rows), pack_int32(token_ids), **fields)  # type: ignore[arg-type]


def outputs_of(engine: EngineCore) -> StepOutputs:
    return engine.take_outputs()[FRONTEND]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (answer([0, 1], [4, 5], step=2), "step 2 arrived, expected step 1"),
        (answer([0], [4]), "rows that were to sample"),
        (answer([0, 0], [4, 5]), "rows that were to sample"),
        (answer([0, 2], [4, 5]), "rows that were to sample"),
        (answer([0, -1], [4, 5]), "rows that were to sample"),
        (answer([0, 1], [4]), "1 tokens for 2 rows"),
        (answer([0, 1], [4, 50]), "outside the vocabulary"),
        (answer([0, 1], [4, -1]), "outside the vocabulary"),
        (ModelRunnerOutput(1, b"123", b""), "column"),
        (answer([0], [4], errors=[RowError(7, "c", "m")]), "not all are in it"),
        (answer([0, 1], [4, 5], prompt_logprobs=[TokenLogprobs(10**6, 1, 1, b"", b"")]), "does not exist"),
    ],
)
def test_a_wrong_answer_is_a_worker_error(
    engine: EngineCore, output: ModelRunnerOutput, message: str
) -> None:
    with pytest.raises(WorkerError, match=message):
        engine.apply(output)


def runs(
    token_ids: list[int], lengths: list[int], num_drafts: list[int], step: int = 2, **ends: list[int]
) -> ModelRunnerOutput:
    columns = {"run_lengths": pack_int32(lengths), "num_drafts": pack_int32(num_drafts)}
    drafters = [DrafterEnds(method, pack_int32(column)) for method, column in ends.items()]
    return answer([0, 1], token_ids, step, drafters=drafters, **columns)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (runs([4, 5, 6], [1, 1], [0, 0]), "3 tokens for 2 rows, which sampled 2"),
        (runs([4, 5, 6, 7, 8], [4, 1], [3, 0]), "4 tokens of row 0 with 3 drafts, which may have up to 2"),
        (runs([4, 5, 6], [2, 1], [0, 0]), "2 tokens of row 0 with 0 drafts"),
        (runs([4], [1, 0], [0, 0]), "0 tokens of row 1"),
        (runs([4, 5], [1, 1], [0, -1]), "row 1 with -1 drafts"),
        (runs([4, 5], [2], [1]), "1 runs for 2 rows"),
        (runs([4, 5], [1, 1], []), "2 runs for 2 rows"),
        (answer([0, 1], [4, 5], 2, run_lengths=b"123"), "column"),
        (runs([4, 5], [1, 1], [1, 1], nobody=[1, 1]), "drafts by 'nobody'"),
        (runs([4, 5], [1, 1], [1, 1], ngram=[1]), "drafts of 1 rows by 'ngram', not of 2"),
        (runs([4, 50, 5], [2, 1], [1, 0]), "outside the vocabulary"),
    ],
)
def test_a_wrong_run_is_a_worker_error(drafting: EngineCore, output: ModelRunnerOutput, message: str) -> None:
    with pytest.raises(WorkerError, match=message):
        drafting.apply(output)


def test_a_run_that_nobody_asked_for_is_a_worker_error(engine: EngineCore) -> None:
    with pytest.raises(WorkerError, match="may have up to 0"):
        engine.apply(runs([4, 5, 6], [2, 1], [1, 0], step=1))


def test_runs_are_emitted_up_to_the_end_of_their_request(drafting: EngineCore) -> None:
    assert drafting.plan() is not None
    drafting.apply(runs([4, 5, 6, 7, 0, 8], [3, 3], [2, 2], ngram=[1, 0], grammar=[2, 4]))
    drafting.check_integrity()
    outputs = outputs_of(drafting)
    columns = unpack_int64(outputs.handles), unpack_int32(outputs.token_indices)
    emitted = zip(*(column.tolist() for column in columns), unpack_int32(outputs.token_ids), strict=True)
    # The second token of request 11 is EOS.
    assert sorted(emitted) == [(10, 1, 4), (10, 2, 5), (10, 3, 6), (11, 1, 7), (11, 2, 0)]
    (ended,) = outputs.finished
    assert (ended.handle, ended.reason) == (11, FinishReason.STOP)
    assert outputs.drafted == [Drafted(10, 1, 2, 2), Drafted(11, 1, 2, 1)]
    # Request 10 reaches its limit of five tokens; what comes behind is dropped, and of row 1, which has gone.
    drafting.apply(runs([8, 9, 9, 9], [2, 2], [1, 2], step=3, ngram=[1, 2]))
    outputs = outputs_of(drafting)
    assert unpack_int32(outputs.token_ids).tolist() == [8]
    (ended,) = outputs.finished
    assert (ended.handle, ended.reason) == (10, FinishReason.LENGTH)
    assert outputs.drafted == [Drafted(10, 4, 1, 0)]
    stats = drafting.stats()
    assert stats.num_free_blocks == 8
    # Nothing of what was drafted for request 11 after its end.
    assert (stats.num_drafted_rows, stats.draft_tokens, stats.accepted_draft_tokens) == (3, 5, 3)
    assert stats.drafts == [DraftCounts("ngram", [2], [1]), DraftCounts("grammar", [1, 2], [1, 1])]


def test_an_answer_nobody_asked_for_is_a_worker_error(engine: EngineCore) -> None:
    engine.apply(answer([0, 1], [4, 5]))
    with pytest.raises(WorkerError, match="expected step none"):
        engine.apply(answer([0, 1], [4, 5]))


def test_rows_may_come_in_any_order(engine: EngineCore) -> None:
    engine.apply(answer([1, 0], [4, 5]))
    outputs = outputs_of(engine)
    assert dict(
        zip(unpack_int64(outputs.handles).tolist(), unpack_int32(outputs.token_ids).tolist(), strict=True)
    ) == {11: 4, 10: 5}


def test_the_worker_s_times_add_up_in_the_stats(engine: EngineCore) -> None:
    engine.apply(answer([0, 1], [4, 5], compute_s=2.0, wait_s=0.5))
    assert engine.plan() is not None
    engine.apply(answer([0, 1], [4, 5], step=2, compute_s=1.0, wait_s=0.25))
    stats = engine.stats()
    assert (stats.worker_compute_s, stats.worker_wait_s) == (3.0, 0.75)


def test_a_row_error_ends_its_request_with_the_worker_s_words(engine: EngineCore) -> None:
    engine.apply(answer([1], [4], errors=[RowError(0, "bad_grammar", "no way on")]))
    outputs = outputs_of(engine)
    assert unpack_int64(outputs.handles).tolist() == [11]
    (end,) = outputs.finished
    assert (end.handle, end.reason, end.error_status) == (10, FinishReason.ERROR, 500)
    assert (end.error_code, end.error_message) == ("bad_grammar", "no way on")
    engine.check_integrity()


def test_a_row_that_ran_out_of_memory_for_two_reasons_is_taken_back_once(engine: EngineCore) -> None:
    lack = RowError(0, "out_of_memory", "no room", 503)
    engine.apply(answer([1], [4], errors=[lack, lack]))
    engine.check_integrity()
    assert engine.stats().num_waiting == 1
    assert engine.plan() is not None


def test_a_row_error_of_an_aborted_request_is_nobody_s(engine: EngineCore) -> None:
    engine.abort(FRONTEND, [10])
    engine.apply(answer([1], [4], errors=[RowError(0, "c", "m")]))
    assert outputs_of(engine).finished == []


def test_logprobs_get_the_request_s_handle_and_the_engine_s_index(engine: EngineCore) -> None:
    engine.apply(answer([0, 1], [4, 5]))
    engine.take_outputs()
    assert engine.plan() is not None
    columns = (pack_int32([6]), b"\0\0\0\0")
    engine.apply(answer([0, 1], [6, 7], step=2, logprobs=[TokenLogprobs(1, 99, 1, *columns)]))
    assert outputs_of(engine).logprobs == [TokenLogprobs(11, 1, 1, *columns)]


def test_logprobs_of_an_aborted_request_are_dropped(engine: EngineCore) -> None:
    engine.abort(FRONTEND, [11])
    engine.apply(answer([0, 1], [6, 7], logprobs=[TokenLogprobs(1, 0, 1, b"", b"")]))
    outputs = outputs_of(engine)
    assert outputs.logprobs == []
    assert unpack_int64(outputs.handles).tolist() == [10]


def test_a_late_token_is_not_taken_for_the_row_s_next_request(engine: EngineCore) -> None:
    engine.abort(FRONTEND, [10])
    message = AddRequest(12, "r", pack_int32([7]), SequenceSampling(seed=1, max_tokens=5))
    engine.add(FRONTEND, message)
    second = engine.plan()
    assert second is not None
    assert [new_row.row for new_row in second.new_rows] == [0]
    engine.apply(answer([0, 1], [4, 5]))
    assert unpack_int64(outputs_of(engine).handles).tolist() == [11]
    engine.apply(answer([0, 1], [8, 9], step=2))
    outputs = outputs_of(engine)
    assert sorted(unpack_int64(outputs.handles).tolist()) == [11, 12]
    engine.check_integrity()


def test_while_all_rows_rest_no_drafts_are_asked_for(drafting: EngineCore) -> None:
    # Planned before it is known.
    step = drafting.plan()
    assert step is not None
    assert step.max_drafts == 2
    drafting.apply(msgspec.structs.replace(runs([4, 5], [1, 1], [2, 2]), draft_rest=2))
    asked = []
    for output in (runs([7, 7], [1, 1], [2, 2], step=3), answer([0, 1], [7, 7], 4)):
        step = drafting.plan()
        assert step is not None
        asked.append(step.max_drafts)
        drafting.apply(msgspec.structs.replace(output, draft_rest=4 - output.step))
        drafting.check_integrity()
    assert asked == [0, 2]
