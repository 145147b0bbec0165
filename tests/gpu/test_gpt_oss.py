"""gpt-oss on a GPU: sinks, windows in some layers, and experts with biases in MXFP4."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.attention.cuda import CudaAttention
from splitserve.worker.device.cuda import CudaDevice
from splitserve.worker.models.placement import Placement
from splitserve.worker.ops.matrix import Matrix
from splitserve.worker.ops.quantization import KeptForm
from tests.checkpoints import CheckpointCache
from tests.gpu.conftest import Gpu
from tests.gpu.whole_worker import NUM_BLOCKS, device_of
from tests.mxfp4 import write_mxfp4
from tests.worker.graphs.pairing import pair_of
from tests.worker.models.cases import prompt
from tests.worker.models.driver import Driver, Row
from tests.worker.models.test_mxfp4 import SPEC
from tests.worker.runner.driver import Driver as StepDriver
from tests.worker.runner.driver import Job

pytestmark = pytest.mark.slow

TOKENS = prompt(331, 45)


@pytest.fixture(scope="module")
def folder(checkpoints: CheckpointCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("mxfp4")
    write_mxfp4(checkpoints.get(SPEC), target)
    return target


def driver_of(gpu: Gpu, path: Path, dtype: torch.dtype) -> Driver:
    device = device_of(gpu)
    backend = CudaAttention(gpu.ops, device.torch_device)
    return Driver(path, dtype, placement=Placement(device, backend))


def test_its_logits_are_as_exact_as_those_of_a_cpu(gpu: Gpu, folder: Path) -> None:
    exact = Driver(folder / "mxfp4", torch.float32).prefill_logits(TOKENS)
    in_full = driver_of(gpu, folder / "mxfp4", torch.float32).prefill_logits(TOKENS)
    torch.testing.assert_close(in_full.cpu(), exact, rtol=1e-4, atol=1e-4)
    found = driver_of(gpu, folder / "mxfp4", torch.bfloat16).prefill_logits(TOKENS)
    allowed = (Driver(folder / "mxfp4", torch.bfloat16).prefill_logits(TOKENS) - exact).square().mean().sqrt()
    assert (found.cpu() - exact).square().mean().sqrt() <= 2 * allowed


def test_its_experts_take_the_memory_of_their_codes(
    gpu: Gpu, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: dict[str, int] = {}
    make = CudaDevice.matrix

    def counted(
        self: CudaDevice, shape: tuple[int, int], dtype: torch.dtype, form: KeptForm, count: int = 1
    ) -> Matrix:
        weight = make(self, shape, dtype, form, count)
        assert weight.num_bytes == self.matrix_bytes(shape, dtype, form, count)
        taken[str(form)] = taken.get(str(form), 0) + weight.num_bytes
        return weight

    monkeypatch.setattr(CudaDevice, "matrix", counted)
    driver_of(gpu, folder / "mxfp4", torch.bfloat16)
    num_layers, num_experts, num_bits = 2, 5, 4.25
    assert taken["mxfp4"] == num_layers * num_experts * (192 * 64 + 64 * 96) * num_bits / 8


def test_a_row_is_the_same_bits_in_any_company(gpu: Gpu, folder: Path) -> None:
    if not gpu.is_emulated:
        pytest.skip("how cuBLAS adds up depends on the number of rows")
    driver = driver_of(gpu, folder / "mxfp4", torch.bfloat16)
    row, other, alone = Row(TOKENS), Row(TOKENS[::-1]), Row(TOKENS)
    expected = driver.run((alone, 45))
    found = [driver.run((other, 5), (row, count))[5:] for count in (7, 20, 1, 1)]
    assert torch.equal(torch.cat([*found, driver.run((row, 16))]), expected)


def test_graphs_end_as_eager_steps_do(gpu: Gpu, folder: Path) -> None:
    pair = pair_of(folder / "mxfp4", device_of(gpu), dtype="bfloat16", max_model_len=160)
    assert pair.num_window_groups == 1
    greedy = SequenceSampling(temperature=0.0, seed=0, ignore_eos=True)
    jobs = [Job(TOKENS[:length], greedy, 3) for length in (1, 17)]
    StepDriver(pair, pair.config, NUM_BLOCKS, random.Random(4), num_window_groups=1).run(jobs)
    assert all(job.error is None and len(job.tokens) == job.num_outputs for job in jobs)
