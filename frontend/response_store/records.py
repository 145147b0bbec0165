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
        has_events: whether its events are appended.
        owner: the process that works on it, "" once it has ended.
    """

    created_s: float
    response: bytes
    items: bytes
    has_events: bool = False
    owner: str = ""

    @property
    def num_bytes(self) -> int:
        """Bytes of JSON."""
        return len(self.response) + len(self.items)


def pack(record: Record) -> bytes:
    """Return the data of a record."""
    return pack_bytes(msgspec.msgpack.encode((record.response, record.items, record.has_events)))


def unpack(data: bytes) -> tuple[bytes, bytes, bool]:
    """Return the response and the items of a record, and whether it has events.

    Raises:
        StoreUnavailableError: another version has written it, or something else.
    """
    try:
        return msgspec.msgpack.decode(unpack_bytes(data), type=tuple[bytes, bytes, bool])
    except msgspec.MsgspecError as error:
        raise StoreUnavailableError(f"a row that cannot be read: {error}") from None


def pack_bytes(text: bytes) -> bytes:
    """Return the data of a text."""
    return _FORMAT + zlib.compress(text, _LEVEL)


def unpack_bytes(data: bytes) -> bytes:
    """Return the text of data.

    Raises:
        StoreUnavailableError: as unpack().
    """
    try:
        if not data.startswith(_FORMAT):
            raise ValueError("unknown format")
        return zlib.decompressobj().decompress(data[1:], _MAX_BYTES)
    except (zlib.error, ValueError) as error:
        raise StoreUnavailableError(f"a row that cannot be read: {error}") from None
