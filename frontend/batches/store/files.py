"""The files of the store: written piece by piece, visible once they are complete."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from splitserve.frontend.batches.store.connection import StoreConnection
from splitserve.frontend.batches.store.tables import BATCHES, FILES, PIECES, Key, Page, is_row, page_query
from splitserve.frontend.response_store.off_loop import off_loop
from splitserve.frontend.response_store.records import pack_bytes, unpack_bytes

# Of a file; a piece is compressed by itself.
PIECE_BYTES = 2**20
# A file that is not complete by then has no writer any more.
WRITING_S = 3600
_OFFERED = (FILES.c.is_complete,)


class FileRow(NamedTuple):
    """What is kept of a file beside its bytes."""

    tenant: str
    id: str
    created_s: float
    expires_s: int
    purpose: str
    name: str
    num_bytes: int
    is_complete: bool


def completion(key: Key, expires_s: int) -> sa.Update:
    """Return the statement that completes a file, which lives until then."""
    return sa.update(FILES).where(*is_row(FILES, key)).values(is_complete=True, expires_s=expires_s)


class StoredFiles:
    """Files by tenant and id; every method may raise FileStoreUnavailableError."""

    def __init__(self, connection: StoreConnection) -> None:
        self._db = connection

    async def begin(self, key: Key, purpose: str, name: str) -> None:
        """Begin a file, in place of one of the same key."""
        now_s = self._db.clock()
        row = FileRow(*key, now_s, int(now_s) + WRITING_S, purpose, name, 0, False)

        def work(db: sa.Connection) -> None:
            db.execute(sa.delete(FILES).where(*is_row(FILES, key)))
            db.execute(sa.insert(FILES).values(**row._asdict()))

        await self._db.run(work)

    async def append(self, key: Key, number: int, data: bytes) -> None:
        """Write a piece of a file.

        Args:
            key: of a file that was begun.
            number: from 0.
            data: its bytes.
        """
        packed = await off_loop(len(data), lambda: pack_bytes(data))
        change = sa.insert(PIECES).values(**key._asdict(), number=number, data=packed)
        grown = sa.update(FILES).where(*is_row(FILES, key))
        grown = grown.values(num_bytes=FILES.c.num_bytes + len(data))

        def work(db: sa.Connection) -> None:
            db.execute(change)
            db.execute(grown)

        await self._db.run(work)

    async def finish(self, key: Key, name: str, ttl_s: int) -> FileRow:
        """Complete a file, under a name, for so many seconds from now; return what it is."""
        change = completion(key, int(self._db.clock()) + ttl_s).values(name=name)

        def work(db: sa.Connection) -> FileRow:
            db.execute(change)
            return FileRow(*db.execute(sa.select(FILES).where(*is_row(FILES, key))).one())

        return await self._db.run(work)

    async def get(self, key: Key) -> FileRow | None:
        """Return a file that is complete, None if there is none."""
        query = sa.select(FILES).where(*is_row(FILES, key), *_OFFERED, FILES.c.expires_s > self._db.clock())
        found = await self._db.run(lambda db: db.execute(query).first(), reads=True)
        return None if found is None else FileRow(*found)

    async def piece(self, key: Key, number: int) -> bytes | None:
        """Return a piece of a file, None after the last one."""
        query = sa.select(PIECES.c.data).where(*is_row(PIECES, key), PIECES.c.number == number)
        found = await self._db.run(lambda db: db.execute(query).scalar(), reads=True)
        return None if found is None else await off_loop(len(found) * 4, lambda: unpack_bytes(found))

    async def delete(self, key: Key) -> bool:
        """Delete a file; return whether there was one."""
        change = sa.delete(FILES).where(*is_row(FILES, key), FILES.c.expires_s > self._db.clock())
        return await self._db.run(lambda db: db.execute(change).rowcount > 0)

    async def page(self, tenant: str, purpose: str, page: Page) -> list[FileRow]:
        """Return a page of a tenant's files and one more, of any purpose if it is ""."""
        query = page_query(FILES, tenant, self._db.clock(), page).where(*_OFFERED)
        if purpose:
            query = query.where(FILES.c.purpose == purpose)
        return await self._db.run(lambda db: [FileRow(*each) for each in db.execute(query)], reads=True)

    async def num_bytes(self) -> int:
        """Return the size of all files and answers of all tenants."""

        def work(db: sa.Connection) -> int:
            files = db.execute(sa.select(sa.func.sum(FILES.c.num_bytes))).scalar() or 0
            return int(files + (db.execute(sa.select(sa.func.sum(BATCHES.c.num_answer_bytes))).scalar() or 0))

        return await self._db.run(work, reads=True)

    async def tidy(self) -> None:
        """Delete what has expired, and what nobody has completed."""
        now_s = self._db.clock()

        def work(db: sa.Connection) -> None:
            for table in (FILES, BATCHES):
                db.execute(sa.delete(table).where(table.c.expires_s <= now_s))

        await self._db.run(work)
