"""Fixtures of this folder."""

from __future__ import annotations

from tests.frontend.http.conftest import client, make_client, pool
from tests.frontend.page.browser import browser, shared_site, site, tab

__all__ = ["browser", "client", "make_client", "pool", "shared_site", "site", "tab"]
