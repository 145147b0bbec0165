"""No step is larger than the link to the worker carries, however many long rows could enter at once."""

from __future__ import annotations

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.ipc.codec import encode, pack_int32
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.ipc.transport import MAX_MESSAGE_BYTES
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling

NUM_TOKENS = 2**18
NUM_REQUESTS = 80
CONFIG = SchedulerConfig(
    num_blocks=2 * NUM_TOKENS // 256,
    block_size=256,
    max_num_seqs=NUM_REQUESTS + 1,
    max_waiting_tokens=2 * NUM_REQUESTS * NUM_TOKENS,
    max_num_batched_tokens=2**19,
    max_model_len=2 * NUM_TOKENS,
)
MODEL = ModelInfo("m", "LlamaForCausalLM", "bfloat16", 100, CONFIG.max_model_len, [2])


def answer(step: SchedulerOutput) -> ModelRunnerOutput:
    return ModelRunnerOutput(step.step, step.rows, pack_int32([7] * (len(step.rows) // 4)))


def test_many_requests_over_one_cached_document_enter_in_steps_that_fit_a_message() -> None:
    engine = EngineCore(CONFIG, MODEL, 1, ManualClock())
    document = pack_int32([5] * NUM_TOKENS)

    def add(handle: int, max_tokens: int) -> None:
        sampling = SequenceSampling(seed=1, max_tokens=max_tokens, ignore_eos=True)
        engine.add(b"a", AddRequest(handle, "r", document, sampling))

    add(0, 1)
    first = engine.plan()
    assert first is not None
    engine.apply(answer(first))
    for handle in range(1, NUM_REQUESTS + 1):
        add(handle, 50)
    entered = 0
    while entered < NUM_REQUESTS:
        step = engine.plan()
        assert step is not None
        assert step.new_rows
        assert len(encode(step)) < MAX_MESSAGE_BYTES // 2
        entered += len(step.new_rows)
        engine.apply(answer(step))
    engine.check_integrity()
