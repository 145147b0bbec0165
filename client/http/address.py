"""Where an API is, and what every request to it carries."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Address(msgspec.Struct, frozen=True):
    """Where an API is, and what every request to it carries.

    Attributes:
        url: base of all paths, without a slash at the end; of any host if there is a socket.
        prefix: of the paths of OpenAI's API, "/v1" or "".
        socket_path: Unix socket to connect to, "" for TCP.
        headers: sent with every request.
        verifies: whether the certificate of an https server is checked.
        timeout_s: longest silence of a server.
    """

    url: str
    prefix: str = "/v1"
    socket_path: str = ""
    headers: Mapping[str, str] = {}
    verifies: bool = True
    timeout_s: float = 600.0
