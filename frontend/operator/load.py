"""GET /load: how busy is this process? For load balancers that ask before they send."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from splitserve.frontend.http.limits import InFlightRequests
from splitserve.frontend.openai.context import json_response


class ServerLoad(msgspec.Struct, frozen=True):
    """The response of /load, with vLLM's field names.

    Attributes:
        server_load: requests in flight in this process, streams included.
    """

    server_load: int


async def server_load(requests: InFlightRequests) -> Response:
    """Answer GET /load."""
    return json_response(ServerLoad(len(requests)))
