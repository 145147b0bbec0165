"""The step that memory is measured with: no later step takes more activations than it did."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.batch.input_batch import BatchLimits
from splitserve.worker.config import WorkerConfig
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.device.workspace import Workspace
from splitserve.worker.largest_step import blocks_of_largest_step
from splitserve.worker.models.decoder import Decoder
from splitserve.worker.speculation.draft_model.plain_steps import PlainSteps
from splitserve.worker.worker import Worker
from tests.worker.runner.conftest import NUM_BLOCKS
from tests.worker.runner.driver import Driver
from tests.worker.runner.test_batch_invariance import random_jobs
from tests.worker.runner.test_engine_core import Loop, Served
from tests.worker.speculation.draft_heads.head_checkpoint import write_head
from tests.worker.speculation.draft_model.test_draft_model import write_draft
from tests.worker.speculation.free_drafts import make_free


class MeasuringDevice(CpuDevice):
    """Runs the largest step, as a GPU does."""

    pool_bytes = 0

    def default_cache_bytes(self, run_largest_step) -> int:  # type: ignore[no-untyped-def]
        self.pool_bytes = run_largest_step()
        return 1 << 20


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> list[Workspace]:
    """Every workspace that is made."""
    made: list[Workspace] = []
    init = Workspace.__init__

    def keep(self: Workspace, *args: object) -> None:
        made.append(self)
        init(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Workspace, "__init__", keep)
    return made


@pytest.mark.parametrize(("num_seqs", "num_tokens"), [(6, 64), (6, 4), (1, 50), (3, 2000)])
def test_no_step_takes_more_than_the_largest(
    num_seqs: int, num_tokens: int, tiny_llama: Path, buffers: list[Workspace]
) -> None:
    device = MeasuringDevice()
    config = WorkerConfig(
        model=str(tiny_llama),
        num_threads=1,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=num_tokens,
        block_size=4,
    )
    worker = Worker(config, device)
    ready = worker.load()
    assert ready.available_bytes == 1 << 20
    assert device.pool_bytes > 0
    (workspace,) = buffers
    measured = {role: buffer.data_ptr() for role, buffer in workspace._buffers.items()}
    worker.init_kv_cache(NUM_BLOCKS)
    Driver(worker, config, NUM_BLOCKS, random.Random(0)).run(random_jobs(random.Random(0)))
    assert {role: buffer.data_ptr() for role, buffer in workspace._buffers.items()} == measured


@pytest.mark.parametrize("method", ["eagle", "draft"])
# Prompts in several chunks, and several prompts in one step.
@pytest.mark.parametrize(("num_seqs", "max_len"), [(6, 60), (1, 90), (6, 10), (40, 20)])
def test_nor_does_what_drafts_beside_the_model(
    num_seqs: int,
    max_len: int,
    method: str,
    tiny_llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_free(monkeypatch)
    monkeypatch.setattr(PlainSteps, "is_one", lambda *_: False)
    draft = write_head(tmp_path) if method == "eagle" else write_draft(tmp_path, noise=0.03)
    config = WorkerConfig(
        model=str(tiny_llama),
        num_threads=1,
        max_num_seqs=num_seqs,
        # Those of the loop's engine.
        max_num_batched_tokens=24,
        max_model_len=max_len,
        block_size=4,
        # A recording takes buffers as it is made, which is not known before.
        enforce_eager=True,
        speculate=method,
        speculative_model=str(draft),
    )
    worker = Worker(config, MeasuringDevice())
    loaded = (worker, config, worker.load())
    assert worker.loaded is not None
    assert worker.loaded.draft is not None
    workspace = worker.loaded.draft.model.workspace
    measured = {role: buffer.data_ptr() for role, buffer in workspace._buffers.items()}
    for num_rows in (1, 2, 9):
        loop = Loop(*loaded, max_drafts=4)
        requests = [
            Served(
                [8 + (7 * i + seed) % 200 for i in range(max_len - 6)],
                SequenceSampling(seed=seed, max_tokens=6, ignore_eos=True),
            )
            for seed in range(num_rows)
        ]
        loop.run(requests)
    assert loop.engine.stats().draft_tokens > 0
    assert {role: buffer.data_ptr() for role, buffer in workspace._buffers.items()} == measured


def test_a_largest_step_that_finds_no_memory_is_refused(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(Decoder, "forward", forward)
    config = WorkerConfig(model=str(tiny_llama), num_threads=1, max_num_batched_tokens=64)
    text = "no memory for a step of --max-num-batched-tokens 64: a step of 64 tokens did not fit"
    with pytest.raises(ConfigError, match=text):
        Worker(config, MeasuringDevice()).load()


def test_it_is_refused_too_where_the_driver_has_no_memory_and_no_rank_can_be_told(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*args: object) -> None:
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported")

    monkeypatch.setattr("splitserve.worker.worker.run_largest_step", run)
    config = WorkerConfig(model=str(tiny_llama), num_threads=1, max_num_batched_tokens=64)
    with pytest.raises(ConfigError, match="no memory for a step of --max-num-batched-tokens 64"):
        Worker(config, MeasuringDevice()).load()


def test_its_rows_stay_within_the_context() -> None:
    limits = BatchLimits(
        max_num_seqs=3,
        max_num_batched_tokens=2000,
        max_model_len=192,
        block_size=4,
        num_blocks=0,
        vocab_size=9,
    )
    # 193 tokens each: the prompt and the one that is sampled.
    assert blocks_of_largest_step(limits) == 3 * 49
