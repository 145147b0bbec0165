"""One tiny checkpoint and a short folder for sockets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.loop.engine import FakeEngine
from tests.worker.runner.checkpoints import write_tiny_llama


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("loop-llama"))


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Names of ipc sockets may have at most 107 bytes, and pytest's own folders may be longer."""
    with tempfile.TemporaryDirectory(prefix="sst-") as folder:
        yield Path(folder)


@pytest.fixture
def engine(short_folder: Path) -> Iterator[FakeEngine]:
    with FakeEngine(short_folder) as fake:
        yield fake
