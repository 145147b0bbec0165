"""Fixtures of this folder."""

from __future__ import annotations

from tests.frontend.client.conftest import addresses, model
from tests.frontend.http.app_fixtures import client, make_client, make_server, pool
from tests.frontend.http.simulated import engine

__all__ = ["addresses", "client", "engine", "make_client", "make_server", "model", "pool"]
