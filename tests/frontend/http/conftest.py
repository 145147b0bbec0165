"""Fixtures of this folder."""

from __future__ import annotations

from tests.frontend.http.app_fixtures import client, make_client, make_server, pool
from tests.frontend.http.simulated import engine

__all__ = ["client", "engine", "make_client", "make_server", "pool"]
