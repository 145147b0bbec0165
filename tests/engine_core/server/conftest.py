from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine_core.server.harness import Engine, running_engine


@pytest.fixture(scope="package")
def shared_engine() -> Iterator[Engine]:
    """One engine with fast steps for every test of this folder that leaves it as it was."""
    with running_engine("--simulated-step-ms", "1", "--lease", "30") as engine:
        yield engine


@pytest.fixture
def engine(shared_engine: Engine) -> Iterator[Engine]:
    """The shared engine; the test's own clients are gone afterwards."""
    assert shared_engine.popen.poll() is None, shared_engine.log()
    before = len(shared_engine.clients)
    yield shared_engine
    assert shared_engine.popen.poll() is None, shared_engine.log()
    while len(shared_engine.clients) > before:
        shared_engine.clients.pop().close()
