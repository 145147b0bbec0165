"""Databases of each kind; those of servers are slow to start."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frontend.response_store.servers import postgresql_server, redis_server

KINDS = [
    "sqlite",
    pytest.param("postgresql", marks=pytest.mark.slow),
    pytest.param("redis", marks=pytest.mark.slow),
]


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A short path: sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="sst-") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def redis_url(folder: Path) -> Iterator[str]:
    (folder / "redis").mkdir()
    with redis_server(folder / "redis") as url:
        yield url


@pytest.fixture(scope="session")
def postgresql_url(folder: Path) -> Iterator[str]:
    folder.chmod(0o711)
    (folder / "postgresql").mkdir()
    with postgresql_server(folder / "postgresql") as url:
        yield url


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What --response-store may say."""
    if request.param == "sqlite":
        return str(tmp_path / "responses.db")
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found
