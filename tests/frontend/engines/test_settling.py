"""Requests that only their own frontend could not take yet wait for it, for a bounded time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from splitserve.engine_core.errors import EngineUnavailableError
from splitserve.engine_core.ipc.messages import Loading
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.frontend.text.model_assets import ModelAssets, load_model_assets
from tests.frontend.engines.conftest import MakePool, state_of, until
from tests.frontend.engines.fake_engine import DEADLINE_S, FakeEngine


@pytest.fixture
def tokenizer_comes(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold every tokenizer back until this is set."""
    comes = threading.Event()

    def load(info: ModelInfo, directory: str, chat_template: str) -> ModelAssets:
        assert comes.wait(DEADLINE_S)
        return load_model_assets(info, directory, chat_template)

    monkeypatch.setattr("splitserve.frontend.engines.assets_cache.load_model_assets", load)
    yield comes
    comes.set()


async def test_what_waits_for_this_frontends_tokenizer_is_served(
    addresses: list[str], model: ModelInfo, make_pool: MakePool, tokenizer_comes: threading.Event
) -> None:
    async with FakeEngine(addresses[0], model):
        pool = await make_pool(addresses[0])
        await until(lambda: pool.status()[0].stage == "tokenizer")
        waits = [asyncio.create_task(pool.settle()) for _ in range(2)]
        await asyncio.sleep(0)
        tokenizer_comes.set()
        await asyncio.gather(*waits)
        assert pool.find_model("m").names == ("m", "alias")


async def test_nobody_waits_for_ever_for_a_tokenizer(
    addresses: list[str],
    model: ModelInfo,
    make_pool: MakePool,
    tokenizer_comes: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("splitserve.frontend.engines.readiness.TOKENIZER_WAIT_S", 0.01)
    async with FakeEngine(addresses[0], model):
        pool = await make_pool(addresses[0])
        await until(lambda: pool.status()[0].stage == "tokenizer")
        await pool.settle()
        with pytest.raises(EngineUnavailableError, match=r"loading \(tokenizer"):
            pool.find_model("m")
        tokenizer_comes.set()


async def test_what_waits_for_the_first_word_of_an_engine_is_served(
    addresses: list[str], model: ModelInfo, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitserve.frontend.engines.readiness.CONNECT_WAIT_S", DEADLINE_S)
    pool = await make_pool(addresses[0])
    waits = asyncio.create_task(pool.settle())
    await asyncio.sleep(0)
    async with FakeEngine(addresses[0], model):
        await waits
        assert pool.find_model("m").names == ("m", "alias")


async def test_nobody_waits_for_an_engine_that_is_not_there_or_not_ready(
    addresses: list[str], model: ModelInfo, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitserve.frontend.engines.readiness.CONNECT_WAIT_S", 0.01)
    pool = await make_pool(addresses[0])
    async with asyncio.timeout(DEADLINE_S):
        await pool.settle()
    assert state_of(pool) == "connecting"
    monkeypatch.setattr("splitserve.frontend.engines.readiness.CONNECT_WAIT_S", 2 * DEADLINE_S)
    async with FakeEngine(addresses[0], model) as engine:
        engine.hello_answer = Loading("engine-7", "weights", 0.25)
        async with asyncio.timeout(DEADLINE_S):
            await pool.settle()
        assert state_of(pool) == "loading"
