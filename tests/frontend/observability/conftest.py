"""Fixtures of this folder."""

from __future__ import annotations

from tests.frontend.http.conftest import addresses, client, engine, make_client, make_server, model, pool

__all__ = ["addresses", "client", "engine", "make_client", "make_server", "model", "pool"]
