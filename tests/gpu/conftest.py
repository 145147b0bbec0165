"""Runs each kernel test on a GPU, and in its small form on the CPU, by the emulation in this folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import tvm_ffi
from torch import Tensor

from splitserve.worker.graphs.cuda_graph import CudaGraph
from splitserve.worker.ops.cuda import CudaOps, cuda_ops
from tests.gpu.emulated.build import SANITIZERS, build
from tests.worker.runner.checkpoints import write_tiny_llama


class EmulatedOps(CudaOps):
    """The emulated kernels; torch multiplies matrices on a CPU into their own dtype only."""

    def _multiply_wide(self, out: Tensor, x: Tensor, turned: Tensor) -> None:
        out.copy_(x.to(out.dtype) @ turned.to(out.dtype))


@dataclass(frozen=True, slots=True)
class Gpu:
    """Where the kernels of a test run.

    Attributes:
        ops: the operations.
        device: of the tensors they are given.
        is_emulated: the threads of a GPU take turns on a CPU; sizes have to be small.
    """

    ops: CudaOps
    device: torch.device
    is_emulated: bool

    def randn(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Normal numbers, the same on every device."""
        return torch.randn(shape).to(dtype).to(self.device)

    def empty_like(self, x: Tensor) -> Tensor:
        """A tensor of NaN: what a kernel forgets to write is no number."""
        return torch.full_like(x, float("nan"))

    def pinned(self, x: Tensor) -> Tensor:
        """A copy in host memory that kernels reach."""
        return x.cpu().clone() if self.is_emulated else x.cpu().pin_memory()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The first test to need the emulated library compiles it, which takes about a minute of CPU time."""
    # A machine with a GPU may have no pytest-timeout, and then no such marker.
    for item in items if config.pluginmanager.hasplugin("timeout") else []:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Known where a path of this folder is named on the command line, as sanitized.py does."""
    parser.addoption("--sanitizer", default="", choices=SANITIZERS, help="of the emulated kernels")


@pytest.fixture(scope="session")
def emulated_ops(request: pytest.FixtureRequest) -> CudaOps:
    library = build(request.config.getoption("--sanitizer", default=""))
    return EmulatedOps(tvm_ffi.load_module(str(library)))


@pytest.fixture(params=[pytest.param("cuda", marks=pytest.mark.gpu), "emulated"])
def gpu(request: pytest.FixtureRequest) -> Gpu:
    if request.param == "emulated":
        return Gpu(request.getfixturevalue("emulated_ops"), torch.device("cpu"), True)
    return request.getfixturevalue("real_gpu")


@pytest.fixture
def real_gpu() -> Gpu:
    """For what the emulation has no equal of."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return Gpu(cuda_ops(), torch.device("cuda"), False)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two layers that a whole worker loads."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _single_threaded_torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def graph_rows(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The rows of every step that a graph ran, a row as often as it has tokens."""
    seen: list[list[int]] = []
    forward = CudaGraph.forward

    def noted(graph: CudaGraph, batch: object, inputs: object) -> None:
        seen.append(inputs.rows.tolist())  # type: ignore[attr-defined]
        forward(graph, batch, inputs)  # type: ignore[arg-type]

    monkeypatch.setattr(CudaGraph, "forward", noted)
    return seen
