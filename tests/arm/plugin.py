"""`pytest -p tests.arm.plugin tests/worker/ops`: the tests of the kernels, with the kernels of 64-bit ARM.

They run in an emulator, see build.py; everything else runs here. What needs memory of both for longer than a
call, as recorded programs do, is skipped.
"""

from __future__ import annotations

import functools
from collections.abc import Generator
from typing import Any

import pytest

from splitserve.worker import _native
from tests.arm.build import build, command
from tests.arm.remote import RemoteLibrary


# Modules load it one by one; all of them call one process, as settings of the library are the process's.
@functools.cache
def _load_library(name: str) -> Any:
    assert name == "splitserve_cpu", name
    return RemoteLibrary(command(build()))


# Before the first import of what loads it.
_native.load_library = _load_library


def pytest_addoption(parser: pytest.Parser) -> None:
    """An emulator takes its time."""
    parser.addoption("--every", type=int, default=1, metavar="N", help="run every Nth of the tests alone")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep every Nth of the kernels' tests, whatever it is."""
    of_kernels = [item for item in items if item.nodeid.startswith("tests/worker/ops/")]
    left_out = set(of_kernels) - set(of_kernels[:: config.getoption("--every")])
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip what cannot be called in another process."""
    try:
        return (yield)
    except NotImplementedError as error:
        pytest.skip(f"not in another process: {error}")
