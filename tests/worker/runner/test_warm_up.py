"""A worker that cannot compute a step says so at its start, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from splitserve.engine_core.errors import ConfigError, DeviceMemoryError, ModelLoadError
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, RowError, SchedulerOutput
from splitserve.worker.batch.input_batch import BatchLimits
from splitserve.worker.config import WorkerConfig
from splitserve.worker.warm_up import warm_up
from splitserve.worker.worker import Worker

EMBEDDING = "model.embed_tokens.weight"


def worker_of(checkpoint: Path) -> Worker:
    worker = Worker(WorkerConfig(model=str(checkpoint), num_threads=1))
    worker.load(lambda loaded_bytes, total_bytes: None)
    return worker


def spoil(checkpoint: Path, name: str, rows: slice) -> None:
    (file,) = checkpoint.glob("*.safetensors")
    tensors = load_file(file)
    tensors[name][rows] = float("nan")
    save_file(tensors, file)


class FailingRunner:
    """Fails every row that computes."""

    def __init__(self, code: str) -> None:
        self._code = code

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        errors = [RowError(0, self._code, "a step of 8 tokens did not fit")] if step.rows else []
        return ModelRunnerOutput(0, rows=b"", token_ids=b"", errors=errors)


def test_a_model_that_computes_no_number_is_refused(tiny_copy: Path) -> None:
    spoil(tiny_copy, EMBEDDING, slice(None))
    with pytest.raises(ModelLoadError, match=r"cannot compute a single step .*not a number"):
        worker_of(tiny_copy).init_kv_cache(8)


def test_a_model_with_a_bad_row_is_served(tiny_copy: Path) -> None:
    spoil(tiny_copy, EMBEDDING, slice(0, 3))
    assert worker_of(tiny_copy).init_kv_cache(8).num_blocks == 8


def test_a_first_step_that_does_not_fit_the_memory_ends_the_start(limits: BatchLimits) -> None:
    with pytest.raises(ConfigError, match="did not fit, in the very first step: lower --gpu-memory"):
        warm_up(FailingRunner(DeviceMemoryError.code), limits)  # type: ignore[arg-type]


@pytest.fixture
def tiny_copy(tmp_path: Path, tiny_llama: Path) -> Path:
    copy = tmp_path / "model"
    copy.mkdir()
    for file in tiny_llama.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


@pytest.fixture
def limits() -> BatchLimits:
    return BatchLimits(
        max_num_seqs=1,
        max_num_batched_tokens=64,
        max_model_len=64,
        num_blocks=8,
        block_size=8,
        vocab_size=32,
    )
