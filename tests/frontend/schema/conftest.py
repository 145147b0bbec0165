"""Fixtures of this folder."""

from __future__ import annotations

from tests.frontend.http.app_fixtures import client, make_client, make_server, pool

__all__ = ["client", "make_client", "make_server", "pool"]
