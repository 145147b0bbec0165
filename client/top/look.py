"""A look at a server: its metrics and open requests, compared with the look before."""

from __future__ import annotations

import asyncio
import time

from rich.console import RenderableType

from splitserve.client.http.api import Api
from splitserve.client.http.errors import ApiError
from splitserve.client.top.metrics import Sample, read_sample
from splitserve.client.top.settings import TopSettings
from splitserve.client.top.view import OpenRequests, view


class Looks:
    """Looks at a server.

    Args:
        api: of the server.
        settings: of the view.
    """

    def __init__(self, api: Api, settings: TopSettings) -> None:
        self._api = api
        self._settings = settings
        self._before: Sample | None = None

    async def look(self) -> RenderableType:
        """Return what there is to see; rates are since the look before.

        Raises:
            ApiError: the server does not tell its metrics.
        """
        text, requests = await asyncio.gather(self._api.get_bytes("/metrics"), self._open_requests())
        now = read_sample(text.decode(errors="replace"), time.monotonic())
        before = self._before or now
        self._before = now
        found = requests.requests if requests is not None else None
        return view(self._settings.url, before, now, found, self._settings.max_requests)

    async def _open_requests(self) -> OpenRequests | None:
        try:
            return await self._api.get("/debug/requests", OpenRequests)
        except ApiError:
            # No engine is ready, or the key may not ask.
            return None
