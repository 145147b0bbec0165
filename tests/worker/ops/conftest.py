"""Runs the kernel tests on every instruction set this CPU has."""

from collections.abc import Iterator

import pytest
import torch

from splitserve.worker.ops.cpu import ops

AVAILABLE = tuple(ops.cpu_isas())


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _single_threaded_torch() -> Iterator[None]:
    """The references are small; a second thread that waits for a busy core makes them slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, params=AVAILABLE)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    ops.set_isa(request.param)
    threads = ops.num_threads()
    ops.set_num_threads(1)
    yield request.param
    ops.set_num_threads(threads)
    ops.set_isa(ops.best_cpu_isa())


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param
