"""Requests for vectors: which engine takes them, and what becomes of what the worker sends."""

from __future__ import annotations

import pytest

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.errors import InvalidRequestError, WorkerError
from splitserve.engine_core.ipc.codec import pack_float32, pack_int32, unpack_int32
from splitserve.engine_core.ipc.messages import AddRequest, FinishReason, StepOutputs
from splitserve.engine_core.ipc.wire import ModelInfo, Pooled
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, RowError, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling

CONFIG = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=8, max_model_len=64, num_blocks=32)
FRONTEND = b"frontend"
NOTHING = SequenceSampling(seed=0, max_tokens=0)


def engine(embedding_size: int = 2) -> EngineCore:
    model = ModelInfo("model", "X", "float32", 50, 64, [0], embedding_size=embedding_size)
    return EngineCore(CONFIG, model, 7, ManualClock(), secret=b"s" * 32)


def ask(
    handle: int, prompt: list[int], sampling: SequenceSampling = NOTHING, *, pools: bool = True
) -> AddRequest:
    return AddRequest(handle, f"r{handle}", pack_int32(prompt), sampling, pools=pools)


def answer(step: SchedulerOutput, *pooled: Pooled, errors: list[RowError] | None = None) -> ModelRunnerOutput:
    rows = [entry.key for entry in pooled]
    return ModelRunnerOutput(
        step.step, pack_int32(rows), pack_int32([0] * len(rows)), errors=errors or [], pooled=list(pooled)
    )


def outputs(core: EngineCore) -> StepOutputs:
    return core.take_outputs()[FRONTEND]


def test_vectors_come_by_handle_with_the_end_and_no_token() -> None:
    core = engine()
    core.add(FRONTEND, ask(11, [1, 2, 3]))
    core.add(FRONTEND, ask(12, [4]))
    step = core.plan()
    assert step is not None
    assert unpack_int32(step.num_tokens).tolist() == [3, 1]
    first, second = (Pooled(row.row, pack_float32([row.row, 1.5])) for row in step.new_rows)
    core.apply(answer(step, first, second))
    told = outputs(core)
    assert told.pooled == [Pooled(11, first.values), Pooled(12, second.values)]
    assert told.handles == b""
    assert [(end.handle, end.reason) for end in told.finished] == [
        (11, FinishReason.LENGTH),
        (12, FinishReason.LENGTH),
    ]
    assert core.plan() is None
    core.check_integrity()


def test_a_long_prompt_is_computed_in_chunks_before_its_vector() -> None:
    core = engine()
    core.add(FRONTEND, ask(11, list(range(1, 20))))
    chunks = []
    while (step := core.plan()) is not None:
        chunks += unpack_int32(step.num_tokens).tolist()
        is_last = sum(chunks) == 19
        core.apply(answer(step, *[Pooled(0, pack_float32([1, 2]))] * is_last))
    assert chunks == [8, 8, 3]
    assert [entry.key for entry in outputs(core).pooled] == [11]


def test_a_row_that_failed_gets_its_error() -> None:
    core = engine()
    core.add(FRONTEND, ask(11, [1]))
    step = core.plan()
    assert step is not None
    core.apply(answer(step, errors=[RowError(0, "numerical_error", "no number")]))
    (end,) = outputs(core).finished
    assert (end.reason, end.error_code) == (FinishReason.ERROR, "numerical_error")


def test_a_row_that_does_not_exist_is_the_workers_fault() -> None:
    core = engine()
    core.add(FRONTEND, ask(11, [1]))
    step = core.plan()
    assert step is not None
    wrong = ModelRunnerOutput(step.step, pack_int32([0]), pack_int32([0]), pooled=[Pooled(99, b"")])
    with pytest.raises(WorkerError, match="names row 99, which does not exist"):
        core.apply(wrong)


@pytest.mark.parametrize(
    ("embedding_size", "message", "param", "text"),
    [
        (2, ask(1, [1], pools=False), "model", "makes embeddings, not text"),
        (0, ask(1, [1]), "model", "generates text, not embeddings"),
        (2, ask(1, [1], SequenceSampling(max_tokens=1)), "max_tokens", "must be 0 for an embedding, got 1"),
        (2, ask(1, [1], SequenceSampling(max_tokens=None)), "max_tokens", "must be 0 for an embedding"),
    ],
)
def test_the_wrong_model_or_length_is_refused(
    embedding_size: int, message: AddRequest, param: str, text: str
) -> None:
    core = engine(embedding_size)
    with pytest.raises(InvalidRequestError, match=text) as refused:
        core.add(FRONTEND, message)
    assert refused.value.param == param
    assert core.plan() is None
