"""A kept response as one piece of data: its JSON and that of its input, compressed."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import msgspec

from splitserve.frontend.response_store.errors import StoreUnavailableError

# Texts shrink to a third in 10 ms per megabyte; higher levels take twice as long for a tenth less.
_LEVEL = 1
_FORMAT = b"\x01"
# Far beyond what a request may hold; a database is not trusted with this process's memory.
_MAX_BYTES = 2**30


class Record(NamedTuple):
    """What is kept of a response.

    Attributes:
        created_s: when the response was asked for, in seconds since 1970.
        response: the object as JSON.
        items: all of its input as a JSON list, with that of the responses before it.
        owner: the process that works on it, "" once it has ended.
    """

    created_s: float
    response: bytes
    items: bytes
    owner: str = ""

    @property
    def num_bytes(self) -> int:
        """Bytes of JSON."""
        return len(self.response) + len(self.items)


def pack(record: Record) -> bytes:
    """Return the data of a record."""
    return _FORMAT + zlib.compress(msgspec.msgpack.encode((record.response, record.items)), _LEVEL)


def unpack(data: bytes) -> tuple[bytes, bytes]:
    """Return the response and the items of a record.

    Raises:
        StoreUnavailableError: another version has written it, or something else.
    """
    try:
        if not data.startswith(_FORMAT):
            raise ValueError("unknown format")
        text = zlib.decompressobj().decompress(data[1:], _MAX_BYTES)
        return msgspec.msgpack.decode(text, type=tuple[bytes, bytes])
    except (zlib.error, msgspec.MsgspecError, ValueError) as error:
        raise StoreUnavailableError(f"a row that cannot be read: {error}") from None
