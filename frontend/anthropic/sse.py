"""Events with their names, as the Messages API streams them."""

from __future__ import annotations

import msgspec

from splitserve.frontend.anthropic.schema.events import StreamEvent

_encode = msgspec.json.Encoder().encode


def encode_event(event: StreamEvent) -> bytes:
    """Return an event as it is sent."""
    return b"event: %s\ndata: %s\n\n" % (str(event.__struct_config__.tag).encode(), _encode(event))
