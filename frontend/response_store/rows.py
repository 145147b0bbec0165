"""What the databases behind the store have to do: rows by tenant and id, and leases of those who write them.

A row has an owner while a process works on its response, and none once that has ended. A row with an owner is
changed by that process alone, whose lease shows that it lives; whoever takes the row away from it (a
cancellation, a deletion) needs to say nothing more, because the process asks for its rows when it renews.

All times are seconds since 1970 by the caller's clock, so the machines of several frontends need clocks that
differ by less than a lease.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class RowKey(NamedTuple):
    """Which row: those of one tenant are nobody else's. Letters, digits and . _ : -, an empty tenant, too."""

    tenant: str
    id: str


class Row(NamedTuple):
    """A kept response.

    Attributes:
        created_s: rows are evicted in this order.
        expires_s: from then on it does not exist.
        owner: the process that works on it, "" for none.
        data: what the store makes of it.
    """

    key: RowKey
    created_s: float
    expires_s: int
    owner: str
    data: bytes


class Events(NamedTuple):
    """Some events of a response, in their order.

    Attributes:
        first: number of the first of them.
        last: of the last.
        data: what the store makes of them.
    """

    first: int
    last: int
    data: bytes


class Database(Protocol):
    """Rows in a database that several processes share; every method raises StoreUnavailableError."""

    async def put(self, row: Row) -> None:
        """Write a row, whatever stands there."""

    async def add(self, row: Row) -> bool:
        """Write a row unless another process works on one of the same key; return whether it was written."""

    async def replace(self, row: Row, owner: str) -> bool:
        """Write a row in place of one that has this owner; return whether it was written."""

    async def append(self, key: RowKey, owner: str, events: Events) -> bool:
        """Write events beside a row of this owner, which replace() leaves there; return whether it is its.

        May be called again with the same first event, and more of them.
        """

    async def events(self, key: RowKey, after: int) -> list[Events]:
        """Return what was appended, in order, from the events on that have a higher number than this."""

    async def get(self, key: RowKey, now_s: float) -> Row | None:
        """Return a row that has not expired."""

    async def delete(self, key: RowKey, now_s: float) -> bool:
        """Delete a row; return whether there was one that had not expired."""

    async def renew(self, owner: str, now_s: float, lease_s: float) -> set[RowKey]:
        """Begin or extend the lease of an owner; return the rows that are still its."""

    async def is_alive(self, owner: str, now_s: float) -> bool:
        """Return whether the lease of an owner has not ended."""

    async def tidy(self, now_s: float, max_bytes: int) -> int:
        """Delete expired rows, then the oldest until the others and their events have at most so many bytes.

        Rows whose owner is alive stay. Returns how many were deleted that had not expired.
        """

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
