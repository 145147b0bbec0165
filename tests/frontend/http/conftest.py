"""Fixtures of this folder."""

from __future__ import annotations

from tests.frontend.app.simulated import engine
from tests.frontend.engines.conftest import addresses, model
from tests.frontend.http.app_fixtures import client, make_client, make_server, pool

__all__ = ["addresses", "client", "engine", "make_client", "make_server", "model", "pool"]
