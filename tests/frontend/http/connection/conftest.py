"""Fixtures of this folder; its tests run on uvloop, as the command does."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from tests.frontend.http.app_fixtures import client, make_client, make_server, pool


def pytest_configure(config: pytest.Config) -> None:
    # Its successor does not exist in all versions of pytest-asyncio that we allow.
    config.addinivalue_line(
        "filterwarnings", "ignore:Overriding the .event_loop_policy:pytest.PytestDeprecationWarning"
    )


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy()


__all__ = ["client", "make_client", "make_server", "pool"]
