"""A real worker process over a real socket: its life, its refusals and its end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from splitserve.engine_core.ipc.codec import encode, pack_int32, unpack_int32
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from splitserve.engine_core.ipc.worker_messages import (
    InitKVCache,
    KVCacheReady,
    ModelRunnerOutput,
    NewRow,
    SchedulerOutput,
    SetLogLevel,
    Shutdown,
    WorkerFailed,
    WorkerHello,
    WorkerReady,
)
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.worker import Worker
from tests.worker.loop.engine import (
    DEADLINE_S,
    ROOT,
    FakeEngine,
    settings_of,
    wait_for_end,
    worker_argv,
    worker_process,
)

pytestmark = [pytest.mark.system, pytest.mark.slow]

NUM_BLOCKS = 40


def first_step() -> SchedulerOutput:
    row = NewRow(
        row=2,
        token_ids=pack_int32([5, 6, 7, 8, 9]),
        num_prompt_tokens=5,
        num_computed_tokens=0,
        block_ids=pack_int32([7, 3]),
        sampling=SequenceSampling(seed=1, logprobs=2, max_tokens=9),
    )
    return SchedulerOutput(1, pack_int32([2]), pack_int32([5]), [row])


def next_step(number: int) -> SchedulerOutput:
    return SchedulerOutput(number, pack_int32([2]), pack_int32([1]))


def tokens_in_process(checkpoint: Path) -> list[int]:
    worker = Worker(WorkerConfig(**msgspec.structs.asdict(settings_of(checkpoint))))
    worker.load(lambda loaded_bytes, total_bytes: None)
    worker.init_kv_cache(NUM_BLOCKS)
    outputs = [worker.execute(step) for step in (first_step(), next_step(2), next_step(3))]
    return [int(unpack_int32(output.token_ids)[0]) for output in outputs]


def bring_up(engine: FakeEngine, checkpoint: Path) -> None:
    engine.configure(settings_of(checkpoint))
    engine.expect_after_progress(WorkerReady)
    engine.init_kv_cache(NUM_BLOCKS)
    assert engine.expect(KVCacheReady) == KVCacheReady(NUM_BLOCKS)


def test_a_worker_loads_answers_every_step_and_ends_when_asked(engine: FakeEngine, checkpoint: Path) -> None:
    with worker_process(engine.address) as process:
        hello = engine.configure(settings_of(checkpoint))
        assert (hello.protocol_version, hello.rank, hello.pid) == (PROTOCOL_VERSION, 0, process.pid)
        assert engine.identity == b"0"
        ready, progress = engine.expect_after_progress(WorkerReady)
        assert ready.model.architecture == "LlamaForCausalLM"
        total_bytes = progress[-1].total_bytes
        assert [progress[0].loaded_bytes, progress[-1].loaded_bytes] == [0, total_bytes]
        engine.init_kv_cache(NUM_BLOCKS, 3)
        assert engine.expect(KVCacheReady).move_block_ns > 0
        # Ctrl-C in a terminal reaches the worker too; ending it is the engine's decision.
        process.send_signal(signal.SIGINT)
        engine.send(first_step())
        engine.send(next_step(2))  # two steps in flight
        outputs = [engine.expect(ModelRunnerOutput), engine.expect(ModelRunnerOutput)]
        engine.send(next_step(3))
        outputs.append(engine.expect(ModelRunnerOutput))
        assert [output.step for output in outputs] == [1, 2, 3]
        assert all(output.compute_s > 0 for output in outputs)
        assert all(output.wait_s > 0 for output in outputs)
        assert [len(output.logprobs) for output in outputs] == [1, 1, 1]
        assert [int(unpack_int32(output.token_ids)[0]) for output in outputs] == tokens_in_process(checkpoint)
        engine.send(Shutdown())
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr is not None
        instructions, attention = process.stderr.read().splitlines()
        assert "instruction_set name=" in instructions
        assert "attention_backend name=cpu" in attention


def test_a_worker_logs_as_the_engine_says(engine: FakeEngine, checkpoint: Path) -> None:
    with worker_process(engine.address) as process:
        engine.configure(msgspec.structs.replace(settings_of(checkpoint), log_format="json"))
        engine.expect_after_progress(WorkerReady)
        engine.send(SetLogLevel("error"))
        engine.send(SetLogLevel("info"))
        engine.send(Shutdown())
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr is not None
        instructions, record, *changes = map(json.loads, process.stderr)
        assert instructions["event"] == "instruction_set"
        assert (record["event"], record["name"]) == ("attention_backend", "cpu")
        assert record["logger"] == "worker.attention.select"
        said = [(change["event"], change["level"]) for change in changes]
        assert said == [("log level", "info"), ("log level", "error")]


def test_a_truncated_checkpoint_is_refused(engine: FakeEngine, checkpoint: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(checkpoint, tmp_path / "broken")
    weights = broken / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 100)
    with worker_process(engine.address) as process:
        engine.configure(settings_of(broken))
        failed, _ = engine.expect_after_progress(WorkerFailed)
        assert failed.code == "model_load_failed"
        assert "model.safetensors" in failed.message
        assert process.wait(DEADLINE_S) == 3


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"max_model_len": 100_000}, "max-model-len"),
        ({"block_size": 15}, "--block-size must be even, got 15"),
        ({"gpu_memory_utilization": 1.5}, "--gpu-memory-utilization must be from 0.05 to 1, got 1.5"),
        ({"tensor_parallel_size": 2}, "--rendezvous must be given"),
    ],
)
def test_settings_that_are_wrong_or_do_not_fit_the_checkpoint_are_refused(
    engine: FakeEngine, checkpoint: Path, changes: dict[str, object], text: str
) -> None:
    with worker_process(engine.address) as process:
        engine.configure(msgspec.structs.replace(settings_of(checkpoint), **changes))
        failed, _ = engine.expect_after_progress(WorkerFailed)
        assert (failed.code, text in failed.message) == ("invalid_config", True)
        assert process.wait(DEADLINE_S) == 2


def test_a_worker_that_is_told_to_end_before_anything_else_ends(engine: FakeEngine) -> None:
    with worker_process(engine.address) as process:
        engine.expect(WorkerHello)
        engine.send(Shutdown())
        assert process.wait(DEADLINE_S) == 0


@pytest.mark.parametrize(
    ("frame", "code"), [(encode(InitKVCache(4)), "worker_failed"), (b"\x92\x03\x01", "protocol_error")]
)
def test_a_worker_that_is_not_told_how_to_compute_ends_with_a_reason(
    engine: FakeEngine, frame: bytes, code: str
) -> None:
    with worker_process(engine.address) as process:
        engine.expect(WorkerHello)
        engine.send_frame(frame)
        assert engine.expect(WorkerFailed).code == code
        assert process.wait(DEADLINE_S) == 4


def test_a_step_that_does_not_fit_the_batch_ends_the_worker(engine: FakeEngine, checkpoint: Path) -> None:
    with worker_process(engine.address) as process:
        bring_up(engine, checkpoint)
        engine.send(next_step(1))
        assert engine.expect(WorkerFailed).code == "worker_failed"
        assert process.wait(DEADLINE_S) == 4


def test_garbage_ends_the_worker_with_a_reason(engine: FakeEngine, checkpoint: Path) -> None:
    with worker_process(engine.address) as process:
        bring_up(engine, checkpoint)
        engine.send_frame(b"\x93\x01\xff")
        assert engine.expect(WorkerFailed).code == "protocol_error"
        assert process.wait(DEADLINE_S) == 4


def test_a_worker_ends_when_its_engine_is_killed(engine: FakeEngine, checkpoint: Path) -> None:
    """The socket stays open, so only the death of its parent can tell the worker."""
    parent = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    argv = [sys.executable, "-c", parent, *worker_argv(engine.address)]
    with subprocess.Popen(argv, cwd=ROOT) as killed:
        try:
            worker_pid = engine.configure(settings_of(checkpoint)).pid
            engine.expect_after_progress(WorkerReady)
        finally:
            killed.kill()
        killed.wait()
        assert wait_for_end(worker_pid)
