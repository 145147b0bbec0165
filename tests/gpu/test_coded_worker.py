"""A whole worker on a GPU with quantised weights: the CPU's logprobs, and the same bits in any company."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.device.base import Device
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.ops.codes.weight import CodedWeight
from splitserve.worker.ops.matrix import Matrix
from splitserve.worker.ops.quantization import GroupForm, KeptForm
from splitserve.worker.worker import Worker
from tests.checkpoints import CheckpointCache, CheckpointSpec
from tests.gpu.conftest import Gpu
from tests.gpu.whole_worker import NUM_BLOCKS, device_of, start_on, start_worker
from tests.worker.graphs.pairing import decoding_jobs, pair_of
from tests.worker.runner.checkpoints import VOCAB
from tests.worker.runner.driver import Driver, Job
from tests.worker.runner.test_batch_invariance import random_jobs, run_alone
from tests.worker.weights.gguf_models import as_blocks, write_gguf
from tests.worker.weights.quantized import CASES, write_quantized

pytestmark = pytest.mark.slow

ON_LOAD = ["int8", "int4", "w8a8"]
# Codes of 4 and 8 bits, with offsets and without, per output and in groups, FP8, and inputs out of order.
STORED = ["gptq", "gptq-act-order", "awq", "packed-8-bits", "int8-channel", "fp8-block"]
PROMPT = list(range(20, 60))


def prompt_logprobs(device: Device, checkpoint: Path, **settings: object) -> npt.NDArray[np.float32]:
    """Of a prompt's tokens, after the first."""
    worker, config = start_on(device, checkpoint, **settings)
    sampling = SequenceSampling(temperature=0.0, seed=0, ignore_eos=True, prompt_logprobs=0)
    job = Job(PROMPT, sampling, 2)
    Driver(worker, config, NUM_BLOCKS).run([job])
    assert job.error is None
    return np.array([np.frombuffer(entry[2], np.float32)[0] for entry in job.prompt_logprobs.values()])


def assert_close(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> None:
    """Roundings of 16-bit activations fall in other places."""
    assert len(ours) == len(theirs) == len(PROMPT) - 1
    assert np.sqrt(np.square(ours - theirs).mean()) < 0.2


class Watched:
    """A device that remembers what it has allocated of weights of codes."""

    def __init__(self, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device, self.coded = device_of(gpu), list[CodedWeight]()
        allocate = self.device.matrix

        def matrix(*arguments: Any) -> Matrix:
            weight = allocate(*arguments)
            if isinstance(weight, CodedWeight):
                self.coded.append(weight)
            return weight

        monkeypatch.setattr(self.device, "matrix", matrix)


@pytest.mark.parametrize("quantization", ON_LOAD)
def test_jobs_in_any_company_equal_themselves_alone(gpu: Gpu, checkpoint: Path, quantization: str) -> None:
    # Without --batch-invariant: all products are those of codes.
    worker, config = start_worker(gpu, checkpoint, quantization=quantization, dtype="bfloat16")
    rng = random.Random(5)
    jobs = random_jobs(rng)[:8]
    driver = Driver(worker, config, NUM_BLOCKS, rng)
    driver.run(jobs)
    assert driver.mixed_steps > 0
    assert {job.error for job in jobs} == {None}
    for job in jobs[:4]:
        assert job == run_alone(worker, config, job)


@pytest.mark.parametrize("quantization", ON_LOAD)
def test_weights_quantised_on_load_give_the_logprobs_of_the_cpu(
    gpu: Gpu, checkpoint: Path, quantization: str
) -> None:
    ours = prompt_logprobs(device_of(gpu), checkpoint, quantization=quantization, dtype="float16")
    assert_close(ours, prompt_logprobs(CpuDevice(), checkpoint, quantization=quantization, dtype="bfloat16"))


@pytest.mark.parametrize("name", [*STORED, "Q4_1", "Q8_0"])
def test_quantised_checkpoints_give_the_logprobs_of_the_cpu(
    gpu: Gpu, name: str, checkpoints: CheckpointCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = checkpoints.get(CheckpointSpec("llama", {"hidden_size": 96, "intermediate_size": 160}))
    if name in CASES:
        path = tmp_path / "quantized"
        write_quantized(source, CASES[name], path, tmp_path / "plain")
    else:
        path = tmp_path / "model.gguf"
        write_gguf(source, path, as_blocks(name))
    watched = Watched(gpu, monkeypatch)
    assert_close(
        prompt_logprobs(watched.device, path, dtype="bfloat16"),
        prompt_logprobs(CpuDevice(), path, dtype="bfloat16"),
    )
    # Query, key and value, output, gate and up, and down of two layers; GGUF has embedding and head, too.
    assert len(watched.coded) == (8 if name in CASES else 10)


def test_experts_are_quantised_too(gpu: Gpu, checkpoints: CheckpointCache) -> None:
    path = checkpoints.get(CheckpointSpec("qwen2moe"))
    settings = {"quantization": "int4", "dtype": "bfloat16"}
    ours = prompt_logprobs(device_of(gpu), path, **settings)
    assert_close(ours, prompt_logprobs(CpuDevice(), path, **settings))


def test_decode_steps_in_graphs_end_as_eager_ones_do(gpu: Gpu, checkpoint: Path) -> None:
    # Its codes of activations are in memory that the capture allocates.
    pair = pair_of(checkpoint, device_of(gpu), quantization="w8a8", dtype="bfloat16")
    rng = random.Random(4)
    Driver(pair, pair.config, NUM_BLOCKS, rng).run(decoding_jobs(rng, VOCAB, featured=0)[:3])


def test_the_planned_memory_is_what_a_weight_takes(gpu: Gpu) -> None:
    device, shape = device_of(gpu), (96, 200)
    for form in ("int8", "int4", "w8a8", GroupForm(4, 128, True), GroupForm(8, 16, False)):
        weight = device.matrix(shape, torch.bfloat16, form, 3)
        assert device.matrix_bytes(shape, torch.bfloat16, form, 3) == weight.num_bytes


def test_the_planned_memory_of_many_rows_holds_a_weight_that_is_written_out(gpu: Gpu) -> None:
    device, shape, most = device_of(gpu), (96, 200), gpu.ops.max_coded_rows
    forms: list[KeptForm] = ["int8", GroupForm(4, 128, True), "w8a8", "plain"]
    assert [device.written_bytes(shape, torch.bfloat16, form, most) for form in forms] == [0] * 4
    found = [device.written_bytes(shape, torch.bfloat16, form, most + 1) for form in forms]
    assert found == [96 * 200 * 2, 96 * 200 * 2, 0, 0]


def test_float32_is_refused(gpu: Gpu, checkpoint: Path) -> None:
    worker = Worker(WorkerConfig(model=str(checkpoint), quantization="int8"), device_of(gpu))
    with pytest.raises(
        ConfigError, match="needs bfloat16 or float16 activations, and this model runs in float32"
    ):
        worker.load()
