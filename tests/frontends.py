"""Which of the api-frontends that share an address are ready."""

from __future__ import annotations

import re

import httpx


def ready_frontend(url: str, timeout_s: float) -> set[str]:
    """Return the id of the frontend that answers, if its engine is ready for it; an empty set if not.

    Its metrics tell both, and do not wait for a tokenizer as its requests do.
    """
    metrics = httpx.get(f"{url}/metrics", timeout=timeout_s).text
    if not re.search(r'^splitserve:engine_state{.*state="ready".*} 1.0$', metrics, re.MULTILINE):
        return set()
    return set(re.findall(r'frontend="(.+?)"', metrics))
