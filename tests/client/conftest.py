"""One server of fake tokens for all tests of the commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from splitserve.client.target.own_server import OwnServer


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """A running server of the demo model's texts and a simulated engine, as --url takes it."""
    with OwnServer(
        "splitserve-demo", "--executor simulated --max-num-seqs 64 --simulated-step-ms 1"
    ) as server:
        yield server.url
