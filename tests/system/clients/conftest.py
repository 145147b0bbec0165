"""Client libraries against the shared server, which ask nobody else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from anthropic import Anthropic

from tests.system.processes import Server

LOCAL = ("127.0.0.1", "localhost", None)


@pytest.fixture(scope="module", autouse=True)
def asked_hosts() -> Iterator[set[object]]:
    """Names that were looked up on other machines, which do not exist here; there must be none in the end."""
    asked, look_up = set[object](), socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name in LOCAL:
            return look_up(host, *args, **kwargs)
        asked.add(name)
        raise socket.gaierror(socket.EAI_NONAME, f"{name} is another machine")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", getaddrinfo)
        yield asked
    assert asked == set()


@pytest.fixture
def claude(server: Server) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=60) as sdk:
        yield sdk


@pytest.fixture(scope="module")
def empty_object(server: Server) -> dict[str, int]:
    """A logit_bias under which the only JSON object is {}, whatever the model would like to write."""
    body = {"prompt": "{}", "add_special_tokens": False}
    tokens = httpx.post(f"{server.url}/tokenize", json=body).json()["tokens"]
    return {str(token_id): 100 for token_id in tokens}
