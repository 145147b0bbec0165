"""One scrape of any frontend of a launch tells the figures of all of them, and the engines' once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from splitserve.engine_core.ipc.connection_counts import UNUSED, ConnectionCounts
from splitserve.engine_core.ipc.messages import EngineStats
from splitserve.engine_core.process.runtime_directory import runtime_directory
from splitserve.frontend.app import create_app
from splitserve.frontend.launch import Launch
from splitserve.frontend.metrics import scrape, siblings
from splitserve.frontend.metrics.exposition import merge
from tests.frontend.http.app_fixtures import make_config
from tests.frontend.http.fake_pool import FakePool


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short path: a Unix socket's name has at most 107 bytes, and pytest's tmp_path may be longer."""
    with tempfile.TemporaryDirectory(prefix="sst-") as path:
        monkeypatch.setenv("XDG_RUNTIME_DIR", path)
        yield Path(runtime_directory()) / "launch"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are in this process: a slow machine shall not make one of them miss the deadline."""
    monkeypatch.setattr(scrape, "DEADLINE_S", 30.0)


@contextlib.asynccontextmanager
async def launched(
    folder: Path, size: int, *numbers: int, unused: int = 0
) -> AsyncGenerator[list[httpx.AsyncClient], None]:
    """Some frontends of a launch in this process; yields a client of each."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = ConnectionCounts.create(size)
    if unused:
        counts[unused] = UNUSED
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for number in numbers:
            pool = FakePool()
            pool.stats_now = EngineStats(generation_tokens=70)
            app = create_app(make_config(), pool, Launch(str(folder), number, counts))
            await stack.enter_async_context(app.router.lifespan_context(app))
            while not (folder / f"api{number}.sock").exists():
                await asyncio.sleep(0)
            transport = httpx.ASGITransport(app)
            clients.append(
                await stack.enter_async_context(
                    httpx.AsyncClient(transport=transport, base_url="http://frontend")
                )
            )
        yield clients


async def samples(client: httpx.AsyncClient, name: str, label: str = "frontend") -> dict[str, float]:
    """Parse a scrape as Prometheus does; return one metric by the value of a label."""
    families = list(text_string_to_metric_families((await client.get("/metrics")).text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "a family stands in one place"
    series = [(s.name, tuple(sorted(s.labels.items()))) for family in families for s in family.samples]
    assert len(series) == len(set(series)), "a repeated series would void the scrape"
    return {s.labels[label]: s.value for family in families for s in family.samples if s.name == name}


async def test_every_frontend_tells_the_figures_of_all(folder: Path) -> None:
    async with launched(folder, 3, 1, 2, 3) as clients:
        for client in clients[1:]:
            await client.get("/version")
        for client in clients:
            text = (await client.get("/metrics")).text
            assert (
                'http_requests_total{frontend="2",handler="/version",method="GET",status="200"} 1.0' in text
            )
            assert set(await samples(client, "process_open_fds")) == {"1", "2", "3"}
            assert await samples(client, "splitserve:frontend_up") == {"1": 1, "2": 1, "3": 1}


async def test_the_figures_of_engines_come_once(folder: Path) -> None:
    async with launched(folder, 2, 1, 2) as (client, _):
        text = (await client.get("/metrics")).text
        assert text.count("splitserve:generation_tokens_total{") == 1
        assert await samples(client, "splitserve:frontend_engines_ready") == {"1": 1, "2": 1}


async def test_one_that_does_not_run_is_left_out_and_shown_as_down(folder: Path) -> None:
    async with launched(folder, 3, 1, 3) as (client, _):
        assert await samples(client, "splitserve:frontend_up") == {"1": 1, "2": 0, "3": 1}
        assert set(await samples(client, "splitserve:frontend_open_requests")) == {"1", "3"}


@pytest.mark.parametrize("connections", [1, 3])
async def test_one_that_hangs_is_left_out_and_shown_as_down(
    connections: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It need not be long: nobody ever answers. What answers is in this process.
    monkeypatch.setattr(scrape, "DEADLINE_S", 0.05)
    async with launched(folder, 2, 1) as (client,):
        with socket.socket(socket.AF_UNIX) as hung:
            hung.bind(f"{folder}/api2.sock")
            # A queue that gets full: connecting is then refused or waits.
            hung.listen(0)
            for _ in range(connections):
                assert await samples(client, "splitserve:frontend_up") == {"1": 1, "2": 0}


async def test_an_answer_without_end_is_no_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(siblings, "MAX_BYTES", 100)
    async with launched(folder, 2, 1, 2) as (client, _):
        assert await samples(client, "splitserve:frontend_up") == {"1": 1, "2": 0}


async def test_the_socket_of_a_predecessor_that_was_killed_is_replaced(folder: Path) -> None:
    folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{folder}/api2.sock")
    async with launched(folder, 2, 1, 2) as (client, _):
        while (await samples(client, "splitserve:frontend_up"))["2"] == 0:
            await asyncio.sleep(0)
        assert os.stat(f"{folder}/api2.sock").st_mode & 0o777 == 0o600
    assert not folder.parent.exists(), "who leaves last removes the directories"


async def test_it_waits_for_the_directory_that_the_engine_makes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(siblings, "BIND_RETRY_S", 0.001)
    launch = Launch(str(folder), 1, ConnectionCounts.create(2))
    async with siblings.SiblingFrontends(launch).answering(lambda: b"text"):
        await asyncio.sleep(0)
        folder.mkdir(parents=True)
        other = siblings.SiblingFrontends(Launch(str(folder), 2, launch.counts))
        while (answer := await other.ask(30.0)) == {}:
            await asyncio.sleep(0)
        assert answer == {1: b"text"}


async def test_a_launch_of_one_frontend_has_its_number(folder: Path) -> None:
    async with launched(folder, 1, 1) as (client,):
        assert await samples(client, "splitserve:frontend_up") == {"1": 1}


async def test_a_number_that_no_frontend_has_is_not_shown_as_down(folder: Path) -> None:
    async with launched(folder, 3, 1, 3, unused=2) as (client, _):
        assert await samples(client, "splitserve:frontend_up") == {"1": 1, "3": 1}


def test_expositions_are_joined_by_family_and_labels_are_no_headlines() -> None:
    family = "# HELP a Said.\n# TYPE a gauge\n"
    first = f'{family}a{{n="# HELP a\\\\n# HELP b"}} 1.0\n# HELP b B.\n# TYPE b gauge\n'
    second = f'# HELP b B.\n# TYPE b gauge\nb 3.0\n{family}a{{n="y"}} 2.0\n'
    joined = merge([first.encode(), second.encode()]).decode()
    assert joined == (
        f'{family}a{{n="# HELP a\\\\n# HELP b"}} 1.0\na{{n="y"}} 2.0\n# HELP b B.\n# TYPE b gauge\nb 3.0\n'
    )
