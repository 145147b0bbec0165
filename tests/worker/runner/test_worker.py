"""What a worker reports of its model, and the sizes it works with."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from splitserve.engine_core.errors import ConfigError, WorkerError
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.ipc.worker_messages import KVCacheReady, MemoryReleased, NewRow, SchedulerOutput
from splitserve.engine_core.process.version import software_version
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.ops.cpu import ops
from splitserve.worker.worker import Worker
from tests.worker.runner.checkpoints import (
    EOS,
    HEAD_DIM,
    MAX_LEN,
    NUM_KV_HEADS,
    NUM_LAYERS,
    VOCAB,
    write_tiny_llama,
)


def ignore(loaded_bytes: int, total_bytes: int) -> None:
    pass


def test_ready_describes_the_model_and_its_blocks(tiny_llama: Path) -> None:
    seen: list[tuple[int, int]] = []
    worker = Worker(WorkerConfig(model=str(tiny_llama), num_threads=1, block_size=8))
    ready = worker.load(lambda loaded_bytes, total_bytes: seen.append((loaded_bytes, total_bytes)))
    num_params = seen[-1][1] // 4
    assert ready.model == ModelInfo(
        path=str(tiny_llama),
        architecture="LlamaForCausalLM",
        dtype="float32",
        vocab_size=VOCAB,
        max_model_len=MAX_LEN,
        eos_token_ids=[EOS],
        num_params=num_params,
        numerics=ready.model.numerics,
    )
    assert seen[-1] == (seen[-1][1],) * 2
    assert ready.block_bytes == 2 * NUM_LAYERS * NUM_KV_HEADS * HEAD_DIM * 8 * 4
    assert 0 < ready.available_bytes <= 4 << 30
    assert worker.init_kv_cache(5) == KVCacheReady(5)


@pytest.mark.parametrize(
    ("dtype", "named"),
    [("auto", "float32 none CpuAttention tp1 pp1 batch-invariant"), ("bfloat16", "bfloat16 none")],
)
def test_what_decides_the_last_bit_is_named(tiny_llama: Path, dtype: str, named: str) -> None:
    worker = Worker(WorkerConfig(model=str(tiny_llama), num_threads=1, dtype=dtype))
    best = worker.load(ignore).model.numerics
    assert best.startswith(f"{software_version()} cpu-{ops.cpu_isa()} {named}")
    ops.set_isa("portable")
    try:
        assert worker.load(ignore).model.numerics == best.replace(ops.best_cpu_isa(), "portable")
    finally:
        ops.set_isa(ops.best_cpu_isa())


def test_an_instruction_set_is_used_as_asked_and_logged(
    tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    try:
        worker = Worker(WorkerConfig(model=str(tiny_llama), num_threads=1, isa="portable"))
        assert " cpu-portable " in worker.load(ignore).model.numerics
        assert "instruction_set name=portable" in caplog.text
        Worker(WorkerConfig(model=str(tiny_llama), num_threads=1))
        assert ops.cpu_isa() == "portable"
    finally:
        ops.set_isa(ops.best_cpu_isa())


def test_an_instruction_set_that_the_processor_lacks_is_refused(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(ops), "cpu_isas", lambda self: ["portable", "avx2"])
    with pytest.raises(ConfigError, match=r"--isa amx cannot be used: .* has portable, avx2"):
        Worker(WorkerConfig(model=str(tiny_llama), isa="amx"))


def test_flags_override_dtype_length_and_memory(tiny_llama: Path) -> None:
    config = WorkerConfig(
        model=str(tiny_llama), num_threads=1, dtype="bfloat16", max_model_len=50, kv_cache_memory_bytes=12345
    )
    ready = Worker(config).load(ignore)
    assert (ready.model.dtype, ready.model.max_model_len, ready.available_bytes) == ("bfloat16", 50, 12345)
    assert ready.block_bytes == 2 * NUM_LAYERS * NUM_KV_HEADS * HEAD_DIM * 16 * 2


def test_a_float16_checkpoint_is_served_as_bfloat16(tmp_path: Path) -> None:
    checkpoint = write_tiny_llama(tmp_path / "half", dtype=torch.float16)
    assert Worker(WorkerConfig(model=str(checkpoint), num_threads=1)).load(ignore).model.dtype == "bfloat16"
    with pytest.raises(ConfigError, match="float16"):
        Worker(WorkerConfig(model=str(checkpoint), num_threads=1, dtype="float16")).load(ignore)


@pytest.mark.parametrize("quantization", ["int8", "int4", "w8a8"])
def test_quantised_weights_need_bfloat16(quantization: str, tiny_llama: Path) -> None:
    config = WorkerConfig(model=str(tiny_llama), num_threads=1, quantization=quantization)
    with pytest.raises(ConfigError, match=f"--quantization {quantization} needs bfloat16 .* in float32"):
        Worker(config).load(ignore)
    worker = Worker(msgspec.structs.replace(config, dtype="bfloat16"))
    model = worker.load(ignore).model
    assert (model.dtype, model.quantization) == ("bfloat16", quantization)
    assert worker.init_kv_cache(8).num_blocks == 8


def test_quantisation_reaches_the_weights(tiny_llama: Path) -> None:
    prompt = list(range(1, 20))
    row = NewRow(0, pack_int32(prompt), len(prompt), 0, pack_int32(range(3)), SequenceSampling(logprobs=3))
    logprobs = []
    for quantization in ("none", "int8", "int4", "w8a8"):
        config = WorkerConfig(
            model=str(tiny_llama), num_threads=1, dtype="bfloat16", quantization=quantization, block_size=8
        )
        worker = Worker(config)
        worker.load(ignore)
        worker.init_kv_cache(4)
        step = SchedulerOutput(0, pack_int32([0]), pack_int32([len(prompt)]), new_rows=[row])
        logprobs.append(worker.execute(step).logprobs)
    assert len({repr(each) for each in logprobs}) == 4


def test_more_context_than_the_model_has_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match="max-model-len"):
        Worker(WorkerConfig(model=str(tiny_llama), num_threads=1, max_model_len=MAX_LEN + 1)).load(ignore)


def test_a_prompt_that_fills_the_context_still_samples(tiny_llama: Path) -> None:
    worker = Worker(WorkerConfig(model=str(tiny_llama), num_threads=1, max_num_seqs=1, block_size=16))
    worker.load(ignore)
    worker.init_kv_cache(MAX_LEN // 16)
    row = NewRow(
        row=0,
        token_ids=pack_int32([5] * MAX_LEN),
        num_prompt_tokens=MAX_LEN,
        num_computed_tokens=0,
        block_ids=pack_int32(range(MAX_LEN // 16)),
        sampling=SequenceSampling(seed=1, max_tokens=0, prompt_logprobs=0),
    )
    output = worker.execute(
        SchedulerOutput(1, rows=pack_int32([0]), num_tokens=pack_int32([MAX_LEN]), new_rows=[row])
    )
    assert len(unpack_int32(output.token_ids)) == 1
    assert len(output.prompt_logprobs) == MAX_LEN - 1


def test_a_worker_without_its_cache_takes_no_step_until_it_has_one_again(tiny_llama: Path) -> None:
    worker = Worker(WorkerConfig(model=str(tiny_llama), num_threads=1, max_num_seqs=1, block_size=4))
    worker.load(ignore)
    worker.init_kv_cache(4)
    row = NewRow(0, pack_int32([9, 8, 7]), 3, 0, pack_int32([0]), SequenceSampling(seed=1, logprobs=3))
    step = SchedulerOutput(1, pack_int32([0]), pack_int32([3]), [row])
    before = worker.execute(step)
    assert worker.release_kv_cache() == MemoryReleased()
    worker.forget_batch()
    assert not worker.can_follow(step)
    assert not worker.prepare_ahead()
    with pytest.raises(WorkerError, match="before the KV cache"):
        worker.execute(step)
    worker.init_kv_cache(4)
    after = worker.execute(step)
    assert (after.token_ids, after.logprobs) == (before.token_ids, before.logprobs)


def test_prefix_blocks_of_another_row_are_read_and_not_computed_again(tiny_llama: Path) -> None:
    """Row 1 shares row 0's first block and computes only what follows it."""
    worker = Worker(WorkerConfig(model=str(tiny_llama), num_threads=1, max_num_seqs=2, block_size=4))
    worker.load(ignore)
    worker.init_kv_cache(8)
    sampling = SequenceSampling(seed=1, logprobs=3)
    tokens = pack_int32([9, 8, 7, 6, 5, 4])

    def new(row: int, num_computed: int, block_ids: list[int]) -> NewRow:
        return NewRow(row, tokens, 6, num_computed, pack_int32(block_ids), sampling)

    first = worker.execute(SchedulerOutput(1, pack_int32([0]), pack_int32([6]), [new(0, 0, [5, 2])]))
    second = worker.execute(SchedulerOutput(2, pack_int32([1]), pack_int32([2]), [new(1, 4, [5, 7])]))
    assert first.token_ids == second.token_ids
    assert first.logprobs[0].logprobs == second.logprobs[0].logprobs
