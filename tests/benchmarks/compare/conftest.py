"""A checkpoint of the comparison's making, small enough to be made in a moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.compare.checkpoint import write_checkpoint
from benchmarks.compare.shapes import Shape

SMALL = Shape("qwen3", 64, 2, 4, 2, 32, 96, 700, 2048, 1e4, 600)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare") / "mini"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.compare.checkpoint.CORPUS_BYTES", 100_000)
        write_checkpoint(folder, SMALL)
    return folder
