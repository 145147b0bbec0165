"""One LLM over the simulated executor, shared by the tests that only generate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from splitserve import LLM
from tests.frontend.checkpoints import write_checkpoint


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(
        tmp_path_factory.mktemp("model"), generation_config={"temperature": 0.25, "top_k": 7}
    )


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    with LLM(str(model), executor="simulated", use_tqdm=False, num_threads=1) as llm:
        yield llm
