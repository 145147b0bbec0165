"""What `splitserve serve` was asked for, as the launcher needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class LaunchOptions(NamedTuple):
    """What `splitserve serve` was asked for.

    Attributes:
        model: directory or hub id, "" for the demo model.
        host, port: where to listen; `uds` instead is the path of a Unix socket.
        num_frontends: api-frontend processes.
        drain_timeout_s: time that running requests get to finish.
        engine_flags, frontend_flags: command-line words to pass on.
        own_stores: names of files in this server's directory, by the flags of its frontends that take a
            place for what is kept, where no other was named.
        scheme: "http", or "https" if the frontends have a certificate.
        has_api_key: clients must send a key.
    """

    model: str
    host: str
    port: int
    uds: str
    num_frontends: int
    drain_timeout_s: float
    engine_flags: tuple[str, ...]
    frontend_flags: tuple[str, ...]
    own_stores: Mapping[str, str]
    scheme: str
    has_api_key: bool
