"""A sliding-window model that gives blocks back samples, bit for bit, what it samples keeping them all."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.executor.inproc import InprocExecutor
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32, unpack_int64
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.worker import Worker
from tests.checkpoints import VOCAB_SIZE, CheckpointCache, CheckpointSpec

FRONTEND = b"f"
WINDOW = 24
BLOCK = 4
MAX_LEN = 2600
SPEC = CheckpointSpec("mistral", {"sliding_window": WINDOW, "max_position_embeddings": MAX_LEN})


@dataclass(slots=True)
class Run:
    """What one engine did: tokens and logprobs by handle, and the most blocks in use."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: list[tuple[int, int, bytes]] = field(default_factory=list)
    most_blocks: int = 0
    num_preemptions: int = 0
    max_num_tokens: int = 0
    first_blocks: list[int] = field(default_factory=list)
    cached: dict[int, int] = field(default_factory=dict)


def run(
    checkpoints: CheckpointCache,
    prompts: list[list[int]],
    num_blocks: int,
    *,
    frees: bool,
    max_tokens: int | None = None,
    one_by_one: bool = False,
) -> Run:
    """Generate with two steps in flight; without `frees` rows keep all blocks.

    One by one, each prompt follows on what came before: its request is the next turn of a chat.
    """
    config = WorkerConfig(
        model=str(checkpoints.get(SPEC)),
        num_threads=1,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        block_size=BLOCK,
    )
    worker = Worker(config)
    model: ModelInfo = worker.load().model
    assert model.sliding_window == WINDOW
    if not frees:
        model = msgspec.structs.replace(model, sliding_window=0)
    executor = InprocExecutor(worker)
    executor.init_kv_cache(num_blocks)
    executor.receive()
    limits = SchedulerConfig(
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_model_len=MAX_LEN,
        block_size=BLOCK,
        num_blocks=num_blocks,
    )
    engine = EngineCore(limits, model, epoch=1, clock=ManualClock())
    result = Run(max_num_tokens=engine.max_num_tokens)
    history: list[int] = []
    for handle, prompt in enumerate(prompts):
        sampling = SequenceSampling(
            seed=handle,
            temperature=1.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            logprobs=0 if handle else None,
        )
        history = [*history, *prompt] if one_by_one else prompt
        engine.add(FRONTEND, AddRequest(handle, f"r{handle}", pack_int32(history), sampling))
        if one_by_one:
            play(engine, executor, result)
            history += result.tokens[handle]
    play(engine, executor, result)
    engine.check_integrity()
    result.num_preemptions = engine.stats().num_preemptions
    assert engine.stats().num_free_blocks == num_blocks
    return result


def play(engine: EngineCore, executor: InprocExecutor, result: Run) -> None:
    """Run until nothing is open."""
    while engine.has_requests or engine.num_steps_in_flight:
        while engine.num_steps_in_flight < 2 and (step := engine.plan()) is not None:
            result.first_blocks += [new.first_block for new in step.new_rows]
            executor.submit(step)
        for message in executor.receive():
            assert isinstance(message, ModelRunnerOutput)
            engine.apply(message)
        stats = engine.stats()
        result.most_blocks = max(result.most_blocks, stats.num_blocks - stats.num_free_blocks)
        collect(engine, result)


def collect(engine: EngineCore, result: Run) -> None:
    outputs = engine.take_outputs().get(FRONTEND)
    if outputs is None:
        return
    columns = unpack_int64(outputs.handles), unpack_int32(outputs.token_ids)
    for handle, token_id in zip(*(column.tolist() for column in columns), strict=True):
        result.tokens.setdefault(handle, []).append(token_id)
    result.cached |= {started.handle: started.num_cached_tokens for started in outputs.started}
    result.logprobs += [(entry.key, entry.token_index, entry.logprobs) for entry in outputs.logprobs]


def prompt_of(length: int, start: int) -> list[int]:
    return [(start + 31 * i) % (VOCAB_SIZE - 2) + 2 for i in range(length)]


@pytest.mark.slow
def test_thousands_of_tokens_come_out_of_a_pool_for_two_hundred(checkpoints: CheckpointCache) -> None:
    prompts = [prompt_of(70, 0), prompt_of(201, 5)]
    keeping = run(checkpoints, prompts, 2 * MAX_LEN // BLOCK + 40, frees=False)
    freeing = run(checkpoints, prompts, 48, frees=True)
    assert sum(map(len, keeping.tokens.values())) == 2 * MAX_LEN - 271
    assert freeing.max_num_tokens == MAX_LEN
    assert freeing.tokens == keeping.tokens
    assert sorted(freeing.logprobs) == sorted(keeping.logprobs)
    assert freeing.most_blocks < keeping.most_blocks / 20
    assert freeing.num_preemptions == 0


@pytest.mark.slow
def test_a_row_that_was_preempted_goes_on_with_the_same_tokens(checkpoints: CheckpointCache) -> None:
    prompts = [prompt_of(9, start) for start in (0, 77, 150)]
    keeping = run(checkpoints, prompts, 3 * MAX_LEN // BLOCK + 40, frees=False)
    # Each row comes to hold seven blocks or eight; 12 are the fewest that serve sequences of any length.
    freeing = run(checkpoints, prompts, 12, frees=True)
    assert freeing.num_preemptions > 0
    assert freeing.tokens == keeping.tokens


def test_the_next_turn_of_a_chat_reads_only_the_last_window_of_its_history(
    checkpoints: CheckpointCache,
) -> None:
    turns = [prompt_of(70, 0), prompt_of(11, 40), prompt_of(30, 80)]
    keeping = run(checkpoints, turns, MAX_LEN // BLOCK, frees=False, max_tokens=400, one_by_one=True)
    freeing = run(checkpoints, turns, 40, frees=True, max_tokens=400, one_by_one=True)
    assert freeing.tokens == keeping.tokens
    assert sorted(freeing.logprobs) == sorted(keeping.logprobs)
    # The history is 469 computed tokens, then 880; the pool holds 160.
    assert [freeing.cached[handle] for handle in range(3)] == [0, 468, 880]
    assert freeing.first_blocks == [0, (468 + 1 - WINDOW) // BLOCK, (880 + 1 - WINDOW) // BLOCK]
