"""Fixtures of this folder."""

from __future__ import annotations

from tests.frontend.engines.conftest import addresses, make_pool, model

__all__ = ["addresses", "make_pool", "model"]
