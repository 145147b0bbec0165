"""GET / and GET /page/...: the page's files, to everybody: they hold nothing that is not in the package.

What the page shows comes from the API, which asks for a key where there are keys.
"""

from __future__ import annotations

import html
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from splitserve.frontend.page.assets import Asset, load_assets

INDEX = "index.html"
# Scripts and styles of this server alone, none within the document: text of a model cannot become either.
# Pictures of other servers would tell them what is read here.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'self'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    # Asked for again each time, and not sent again while the tag is the same: an update shows at once.
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}

Endpoint = Callable[[Request], Awaitable[Response]]


class Page:
    """Serves the page; from memory, so that nothing waits for a disk."""

    def __init__(self, root_path: str = "") -> None:
        """Args: root_path under which a proxy publishes this server, "" for none."""
        self._assets = load_assets()
        index = self._assets.pop(INDEX).body
        if root_path:
            base = f'<base href="{html.escape(root_path)}/">'.encode()
            index = index.replace(b"<head>", b"<head>" + base, 1)
        self._index = Asset(index, ".html")

    @property
    def routes(self) -> dict[str, Endpoint]:
        """What answers, by path."""
        return {"/": self._show_index, "/page/{name:path}": self._show_asset}

    @property
    def paths(self) -> frozenset[str]:
        """Every path that has something."""
        return frozenset(("/", *(f"/page/{name}" for name in self._assets)))

    async def _show_index(self, request: Request) -> Response:
        return answer(request, self._index)

    async def _show_asset(self, request: Request) -> Response:
        asset = self._assets.get(request.path_params["name"])
        if asset is None:
            raise HTTPException(404)
        return answer(request, asset)


def answer(request: Request, asset: Asset) -> Response:
    """Send a file, compressed where the browser takes that, or say that the browser's copy is good."""
    headers = HEADERS | {"etag": asset.etag}
    if asset.etag in (tag.strip() for tag in request.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers=headers)
    body = asset.body
    if "gzip" in request.headers.get("accept-encoding", ""):
        body = asset.gzipped
        headers["content-encoding"] = "gzip"
    return Response(body, headers=headers, media_type=asset.media_type)
