"""A model directory, addresses, and pools that are closed in the end."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.frontend.engines.pool import EnginePool
from tests.frontend.checkpoints import write_checkpoint
from tests.frontend.engines.fake_engine import DEADLINE_S
from tests.frontend.engines.messages import MODEL

MakePool = Callable[..., Awaitable[EnginePool]]


async def until(condition: Callable[[], bool]) -> None:
    """Turn the loop until something holds; the deadline is the test's."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


def state_of(pool: EnginePool) -> str:
    """Return the state of its first engine."""
    return pool.status()[0].state


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    """A model whose directory holds a tokenizer; id 2 is its EOS."""
    return msgspec.structs.replace(MODEL, path=str(write_checkpoint(tmp_path_factory.mktemp("model"))))


@pytest.fixture
def addresses() -> Iterator[list[str]]:
    """Two ipc addresses; pytest's own directories may be too long for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="ss-") as directory:
        yield [f"ipc://{Path(directory)}/{name}.sock" for name in ("a", "b")]


@pytest.fixture
async def make_pool() -> AsyncIterator[MakePool]:
    """Start a pool; it is closed after the test."""
    pools: list[EnginePool] = []

    async def make(*addresses: str, assets_dir: str = "", failover_wait_s: float = 30.0) -> EnginePool:
        pool = EnginePool(addresses, "test", assets_dir=assets_dir, failover_wait_s=failover_wait_s)
        pools.append(pool)
        await pool.start()
        return pool

    yield make
    for pool in pools:
        await pool.close()
