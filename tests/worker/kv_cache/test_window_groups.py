"""A model whose layers differ samples, bit for bit, the same with blocks for each group of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.executor.inproc import InprocExecutor
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32, unpack_int64
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, WorkerReady
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.kv_cache.layer_groups import LayerGroups
from splitserve.worker.models import loaded_model
from splitserve.worker.worker import Worker
from tests.checkpoints import VOCAB_SIZE, CheckpointCache, CheckpointSpec, load_reference

FRONTEND = b"f"
WINDOW = 24
BLOCK = 4
MAX_LEN = 640
BUDGET = 32
# One layer in six sees all tokens.
GEMMA = CheckpointSpec(
    "gemma3",
    {
        "num_hidden_layers": 7,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 6,
        "max_position_embeddings": MAX_LEN,
    },
)
SPECS = {
    "gemma3": GEMMA,
    # Every other layer, with sinks.
    "gptoss": CheckpointSpec("gptoss", {"sliding_window": WINDOW, "max_position_embeddings": MAX_LEN}),
}


@dataclass(slots=True)
class Served:
    """What one engine with one worker did."""

    model: ModelInfo
    ready: WorkerReady
    engine: EngineCore
    executor: InprocExecutor
    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[tuple[int, int], bytes] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    most_blocks: int = 0

    def add(self, prompt: Sequence[int], max_tokens: int, temperature: float = 1.0) -> int:
        handle = len(self.tokens)
        self.tokens[handle] = []
        sampling = SequenceSampling(
            seed=handle, temperature=temperature, max_tokens=max_tokens, ignore_eos=True, logprobs=0
        )
        self.engine.add(FRONTEND, AddRequest(handle, f"r{handle}", pack_int32(prompt), sampling))
        return handle

    def play(self) -> None:
        """Run until nothing is open, two steps in flight."""
        engine = self.engine
        while engine.has_requests or engine.num_steps_in_flight:
            while engine.num_steps_in_flight < 2 and (step := engine.plan()) is not None:
                self.executor.submit(step)
                engine.check_integrity()
            for message in self.executor.receive():
                assert isinstance(message, ModelRunnerOutput)
                engine.apply(message)
            stats = engine.stats()
            self.most_blocks = max(self.most_blocks, stats.num_blocks - stats.num_free_blocks)
            self._collect()
        engine.check_integrity()
        assert engine.stats().num_free_blocks == engine.stats().num_blocks

    def _collect(self) -> None:
        outputs = self.engine.take_outputs().get(FRONTEND)
        if outputs is None:
            return
        columns = unpack_int64(outputs.handles), unpack_int32(outputs.token_ids)
        for handle, token_id in zip(*(column.tolist() for column in columns), strict=True):
            self.tokens[handle].append(token_id)
        assert not any(end.error_code for end in outputs.finished)
        self.cached |= {started.handle: started.num_cached_tokens for started in outputs.started}
        self.logprobs |= {(entry.key, entry.token_index): entry.logprobs for entry in outputs.logprobs}


def serve(
    checkpoints: CheckpointCache,
    num_blocks: int,
    spec: CheckpointSpec = GEMMA,
    *,
    num_host_blocks: int = 0,
    **settings: object,
) -> Served:
    """Start a worker and an engine."""
    config = WorkerConfig(
        model=str(checkpoints.get(spec)),
        num_threads=1,
        max_num_seqs=4,
        max_num_batched_tokens=BUDGET,
        block_size=BLOCK,
        **settings,  # type: ignore[arg-type]
    )
    worker = Worker(config)
    ready = worker.load()
    executor = InprocExecutor(worker)
    executor.init_kv_cache(num_blocks, num_host_blocks)
    executor.receive()
    speculation = config.speculation
    limits = SchedulerConfig(
        max_num_seqs=4,
        max_num_batched_tokens=BUDGET,
        max_model_len=MAX_LEN,
        block_size=BLOCK,
        num_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        num_speculative_tokens=0 if speculation is None else speculation.num_speculative_tokens,
    )
    return Served(ready.model, ready, EngineCore(limits, ready.model, 1, ManualClock()), executor)


def ungrouped(
    checkpoints: CheckpointCache,
    monkeypatch: pytest.MonkeyPatch,
    spec: CheckpointSpec = GEMMA,
    **settings: object,
) -> Served:
    """As before there were groups: all layers share each block, and rows keep all of them."""
    with monkeypatch.context() as patched:
        patched.setattr(loaded_model, "group_layers", lambda *args: LayerGroups())
        served = serve(checkpoints, 3 * MAX_LEN // BLOCK, spec, **settings)  # type: ignore[arg-type]
    assert served.model.num_window_groups == 0
    return served


def prompt_of(length: int, start: int) -> list[int]:
    return [(start + 31 * i) % (VOCAB_SIZE - 2) + 2 for i in range(length)]


@pytest.mark.parametrize("name", SPECS)
def test_tokens_are_those_of_transformers_far_beyond_the_window(
    checkpoints: CheckpointCache, name: str
) -> None:
    spec = SPECS[name]
    served = serve(checkpoints, 200, spec)
    assert served.model.num_window_groups > 0
    prompt = prompt_of(45, 3)
    handle = served.add(prompt, 120, temperature=0.0)
    served.play()
    generated = served.tokens[handle]
    # By induction: if each token is the reference's choice after those before it, the sequences are equal.
    reference = load_reference(checkpoints.get(spec), torch.float32)
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + generated[:-1]]), use_cache=False).logits[0]
    assert generated == logits[len(prompt) - 1 :].argmax(-1).tolist()


# A token's codes, and so the bits, do not depend on the group that holds them.
CODES = {"dtype": "bfloat16", "kv_cache_dtype": "int8"}
# The library's layers say themselves which windows they have.
LIBRARY = {"model_impl": "transformers"}


@pytest.mark.parametrize(
    "settings", [{}, {"enforce_eager": True}, {"speculate": "ngram"}, CODES, LIBRARY, {**LIBRARY, **CODES}]
)
@pytest.mark.parametrize("name", SPECS)
def test_groups_change_no_bit(
    checkpoints: CheckpointCache, monkeypatch: pytest.MonkeyPatch, name: str, settings: dict[str, object]
) -> None:
    """Prompts in chunks, equal prefixes, preemption, and a tier of blocks in host memory."""
    if settings and name != "gemma3":
        pytest.skip("one model is enough")
    numbers = {key: value for key, value in settings.items() if key in {**CODES, **LIBRARY}}
    whole = ungrouped(checkpoints, monkeypatch, SPECS[name], **numbers)
    num_groups = serve(checkpoints, 30, SPECS[name]).model.num_window_groups
    held = -(-(BUDGET + BUDGET) // BLOCK) + 1
    num_blocks = 60 + num_groups * held
    grouped = serve(checkpoints, num_blocks, SPECS[name], num_host_blocks=num_blocks, **settings)
    assert grouped.model.num_window_groups == num_groups
    for served in (whole, grouped):
        for length in (70, 90, 9):
            served.add(prompt_of(length, 0), 90)
        served.add([7, 8, 9] * 30, 60, temperature=0.0)
        served.play()
        # The next turn of the last one, which finds its history.
        served.add([*[7, 8, 9] * 30, *served.tokens[3], 5, 6], 20)
        served.play()
    assert grouped.tokens == whole.tokens
    assert grouped.logprobs == whole.logprobs
    assert grouped.engine.stats().num_preemptions > 0
    assert grouped.cached[4] >= 140
    offload = grouped.engine.scheduler.kv.cache.offload
    assert offload is not None
    assert offload.num_saved > 0


def test_a_long_generation_keeps_one_layer_of_six(
    checkpoints: CheckpointCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(20, 0)
    grouped, whole = serve(checkpoints, 400), ungrouped(checkpoints, monkeypatch)
    for served in (grouped, whole):
        served.add(prompt, MAX_LEN - 20)
        served.play()
    assert grouped.tokens == whole.tokens
    assert grouped.logprobs == whole.logprobs
    bytes_of = [served.most_blocks * served.ready.block_bytes for served in (grouped, whole)]
    # One of seven layers keeps all 640 tokens, the others the last 24: 1,240 of 4,480 at best.
    assert bytes_of[0] < 0.36 * bytes_of[1]
