"""Which of the api-frontends that share an address are ready."""

from __future__ import annotations

import re

import httpx


def ready_frontends(url: str, timeout_s: float) -> set[str]:
    """Return the numbers of the frontends of a launch that have an engine ready, whichever answers."""
    metrics = httpx.get(f"{url}/metrics", timeout=timeout_s).text
    return set(
        re.findall(r'^splitserve:frontend_engines_ready{frontend="(.+?)"} 1.0$', metrics, re.MULTILINE)
    )
