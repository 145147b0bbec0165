"""A whole worker on a GPU that makes vectors and numbers of labels: those of the CPU's worker."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from splitserve.engine_core.ipc.codec import pack_int32, unpack_float32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.worker import Worker
from tests.checkpoints import CheckpointCache, CheckpointSpec
from tests.embeddings import cosines, make_embedder
from tests.encoders import KINDS, add_modules, make_encoder
from tests.gpu.conftest import Gpu
from tests.gpu.whole_worker import NUM_BLOCKS, start_on, start_worker

pytestmark = pytest.mark.slow

LENGTHS = [1, 5, 33, 70]
BLOCKS_PER_ROW = NUM_BLOCKS // len(LENGTHS)
Vectors = npt.NDArray[np.float32]


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(4, 200, (n,), generator=generator).tolist() for n in LENGTHS]


def vectors(worker: Worker, chunk: int, rows: Sequence[int] = range(len(LENGTHS)), **of_row: Any) -> Vectors:
    """What comes of some of the prompts, together, in steps of at most `chunk` tokens of each."""
    asked, found = prompts(), {}
    computed = dict.fromkeys(rows, 0)
    assert worker.loaded is not None
    # An encoder has no KV cache.
    num_blocks = BLOCKS_PER_ROW if worker.loaded.model.num_layers else 0
    new_rows = [
        NewRow(
            row=row,
            token_ids=pack_int32(asked[row]),
            num_prompt_tokens=LENGTHS[row],
            num_computed_tokens=0,
            block_ids=pack_int32(list(range(row * num_blocks, (row + 1) * num_blocks))),
            sampling=SequenceSampling(seed=0, max_tokens=0),
            **of_row,
        )
        for row in rows
    ]
    while computed:
        counts = [min(chunk, LENGTHS[row] - done) for row, done in computed.items()]
        step = SchedulerOutput(1, pack_int32(list(computed)), pack_int32(counts), new_rows=new_rows)
        output = worker.execute(step)
        assert output.errors == []
        new_rows = []
        for entry in output.pooled:
            found[entry.key] = unpack_float32(entry.values)
        left = zip(computed.items(), counts, strict=True)
        computed = {row: done + n for (row, done), n in left if done + n < LENGTHS[row]}
    worker.execute(SchedulerOutput(2, b"", b"", freed_rows=pack_int32(list(rows))))
    assert sorted(found) == sorted(rows)
    return np.array([found[row] for row in rows])


def both(gpu: Gpu, folder: Path, chunk: int = 128, **settings: Any) -> tuple[Vectors, Vectors]:
    """The vectors of a GPU, and those of a CPU in float32."""
    settings = {"max_num_batched_tokens": 128, **settings}
    ours, _ = start_worker(gpu, folder, **settings)
    theirs, _ = start_on(CpuDevice(), folder, **{**settings, "dtype": "float32"})
    return vectors(ours, chunk), vectors(theirs, chunk)


@pytest.mark.parametrize("kind", KINDS)
def test_encoders_give_the_vectors_of_the_cpu(gpu: Gpu, kind: str, tmp_path: Path) -> None:
    ours, theirs = both(gpu, make_encoder(tmp_path / "model", kind))
    assert cosines(ours, theirs).min() > 0.999999
    assert np.abs(ours - theirs).max() < 1e-4 * np.abs(theirs).max()


@pytest.mark.parametrize("mode", ["cls_token", "max_tokens", "weightedmean_tokens"])
def test_encoders_may_pool_otherwise(gpu: Gpu, mode: str, tmp_path: Path) -> None:
    ours, theirs = both(gpu, add_modules(make_encoder(tmp_path / "model"), mode, dense=(20,)))
    assert ours.shape == (len(LENGTHS), 20)
    assert cosines(ours, theirs).min() > 0.999999


@pytest.mark.parametrize(("kind", "dtype"), [("modernbert", "bfloat16"), ("bert", "float16")])
def test_encoders_run_in_16_bits(gpu: Gpu, kind: str, dtype: str, tmp_path: Path) -> None:
    ours, theirs = both(gpu, make_encoder(tmp_path / "model", kind), dtype=dtype)
    assert cosines(ours, theirs).min() > 0.998


@pytest.mark.parametrize(
    ("kind", "dtype", "tolerance"),
    [("bert", "float32", 1e-4), ("modernbert", "float32", 1e-4), ("bert", "bfloat16", 0.1)],
)
def test_labels_have_the_numbers_of_the_cpu(
    gpu: Gpu, kind: str, dtype: str, tolerance: float, tmp_path: Path
) -> None:
    folder = make_encoder(tmp_path / "model", kind, {"num_labels": 3}, head="ForSequenceClassification")
    ours, theirs = both(gpu, folder, dtype=dtype)
    assert ours.shape == (len(LENGTHS), 3)
    assert np.abs(ours - theirs).max() < tolerance * np.abs(theirs).max()


def test_each_token_may_have_a_vector(gpu: Gpu, tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "model")
    ours, _ = start_worker(gpu, folder)
    theirs, _ = start_on(CpuDevice(), folder)
    found, expected = (vectors(worker, 64, [2], pools_tokens=True)[0] for worker in (ours, theirs))
    assert found.size == LENGTHS[2] * 48
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("mode", ["lasttoken", "mean_tokens"])
def test_decoders_give_the_vectors_of_the_cpu_in_chunks(
    gpu: Gpu, mode: str, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    folder = make_embedder(checkpoints.get(CheckpointSpec("qwen3")), tmp_path / "model", normalizes=False)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    ours, theirs = both(gpu, folder, chunk=20)
    assert cosines(ours, theirs).min() > 0.999999


def test_judges_give_the_numbers_of_the_cpu(gpu: Gpu, checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoints.get(CheckpointSpec("qwen3")), folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {"yes": 7, "no": 8}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    ours, theirs = both(gpu, folder, task="score")
    assert ours.shape == (len(LENGTHS), 1)
    assert np.abs(ours - theirs).max() < 1e-4 * np.abs(theirs).max()
