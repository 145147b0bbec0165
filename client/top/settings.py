"""What `splitserve top` may be told."""

# No "from __future__ import annotations": --help would then have to evaluate each declaration.
from typing import Annotated

from splitserve.client.target.settings import DEFAULT_URL, ConnectionSettings
from splitserve.engine_core.settings.setting import Setting


class TopSettings(ConnectionSettings, frozen=True, kw_only=True):
    """Settings of the view."""

    url: Annotated[str, Setting("server, with or without /v1, or unix:PATH", "server", metavar="URL")] = (
        DEFAULT_URL
    )
    interval_s: Annotated[
        float, Setting("seconds between looks at the server", "view", low=0.1, high=3600)
    ] = 1.0
    max_requests: Annotated[int, Setting("open requests to show", "view", low=0, high=100)] = 15
    once: Annotated[bool, Setting("look for one interval, print and end", "view")] = False
