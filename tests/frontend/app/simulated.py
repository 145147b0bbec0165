"""A running engine-core with made-up tokens, as a fixture."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.frontend.checkpoints import write_checkpoint


class Engine(NamedTuple):
    """A running engine-core."""

    address: str
    process: subprocess.Popen[bytes]


@contextlib.contextmanager
def simulated_engine(checkpoint: Path, *more_flags: str) -> Iterator[Engine]:
    """Run an engine with a small queue for this model."""
    with tempfile.TemporaryDirectory(prefix="ss-") as directory:
        address = f"ipc://{Path(directory)}/engine.sock"
        flags = ["--model", str(checkpoint), "--served-model-name", "org/sim", "--listen", address]
        flags += ["--executor", "simulated", "--max-num-seqs", "8", "--max-num-waiting", "8"]
        flags += ["--log-level", "warning", *more_flags]
        process = subprocess.Popen([sys.executable, "-m", "splitserve.engine_core.cli", *flags])
        try:
            yield Engine(address, process)
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One engine for all tests of a file."""
    with simulated_engine(write_checkpoint(tmp_path_factory.mktemp("model"))) as engine:
        yield engine
