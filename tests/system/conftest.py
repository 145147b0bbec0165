"""The server most system tests share: the demo model behind one engine-core and one api-frontend."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.system.processes import Server, serve


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: ipc socket names may have at most 107 bytes, and pytest's tmp_path may be longer."""
    with tempfile.TemporaryDirectory(prefix="sst-") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="sst-") as path, serve(Path(path)) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="unused", max_retries=0, timeout=60) as sdk:
        yield sdk


@pytest.fixture
def model(client: OpenAI) -> str:
    return client.models.list().data[0].id
