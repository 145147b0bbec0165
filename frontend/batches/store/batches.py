"""The batches of the store, who works on them, and their answers.

what                            done by               only if
a batch is claimed              any frontend          it is open and its lease has ended
a batch, an answer is written   its owner             it is still the owner
a batch is to be cancelled      any frontend          it is open; the owner hears of it when it renews
an answer is written again      an owner              never: the first one stays
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from splitserve.frontend.batches.schema.batches import BatchObject, KeptBatch, RequestCounts
from splitserve.frontend.batches.store.connection import StoreConnection
from splitserve.frontend.batches.store.files import completion
from splitserve.frontend.batches.store.tables import ANSWERS, BATCHES, Key, Page, is_row, page_query

LEASE_S = 10.0
_decode = msgspec.json.Decoder(KeptBatch).decode


class BatchRow(NamedTuple):
    """A batch as it is kept."""

    tenant: str
    id: str
    created_s: float
    expires_s: int
    is_open: bool
    owner: str
    owned_until_s: float
    cancelling_s: int
    num_completed: int
    num_failed: int
    num_answer_bytes: int
    data: bytes

    @property
    def key(self) -> Key:
        """Which batch."""
        return Key(self.tenant, self.id)

    @property
    def kept(self) -> KeptBatch:
        """What its owner has written."""
        return _decode(self.data)

    def shown(self) -> BatchObject:
        """Return the batch as its routes show it."""
        batch = self.kept.batch
        counts = RequestCounts(
            total=batch.request_counts.total, completed=self.num_completed, failed=self.num_failed
        )
        batch = msgspec.structs.replace(batch, request_counts=counts)
        if self.cancelling_s and self.is_open:
            return msgspec.structs.replace(batch, status="cancelling", cancelling_at=self.cancelling_s)
        if self.cancelling_s and batch.status == "cancelled":
            return msgspec.structs.replace(batch, cancelling_at=self.cancelling_s)
        return batch


class Answered(NamedTuple):
    """An answer to a line.

    Attributes:
        line: number of the line in the input, from 1.
        failed: it is an error.
        data: the line of the answer.
    """

    line: int
    failed: bool
    data: bytes


class StoredBatches:
    """Batches by tenant and id; every method may raise FileStoreUnavailableError."""

    def __init__(self, connection: StoreConnection) -> None:
        self._db = connection

    async def add(self, key: Key, kept: KeptBatch, expires_s: int) -> BatchRow:
        """Keep a new batch, which nobody works on yet."""
        data = msgspec.json.encode(kept)
        row = BatchRow(*key, self._db.clock(), expires_s, True, "", 0.0, 0, 0, 0, 0, data)
        await self._db.run(lambda db: db.execute(sa.insert(BATCHES).values(**row._asdict())))
        return row

    async def get(self, key: Key) -> BatchRow | None:
        """Return a batch, None if there is none."""
        query = sa.select(BATCHES).where(*is_row(BATCHES, key), BATCHES.c.expires_s > self._db.clock())
        found = await self._db.run(lambda db: db.execute(query).first(), reads=True)
        return None if found is None else BatchRow(*found)

    async def page(self, tenant: str, page: Page) -> list[BatchRow]:
        """Return a page of a tenant's batches and one more."""
        query = page_query(BATCHES, tenant, self._db.clock(), page)
        return await self._db.run(lambda db: [BatchRow(*each) for each in db.execute(query)], reads=True)

    async def cancel(self, key: Key) -> bool:
        """Ask for the end of a batch; return whether it is open."""
        change = sa.update(BATCHES).where(*is_row(BATCHES, key), BATCHES.c.is_open)
        asked_s = sa.case((BATCHES.c.cancelling_s == 0, int(self._db.clock())), else_=BATCHES.c.cancelling_s)
        change = change.values(cancelling_s=asked_s)
        return await self._db.run(lambda db: db.execute(change).rowcount > 0)

    async def claim(self, owner: str, limit: int) -> list[BatchRow]:
        """Become the owner of open batches that have none, the oldest first; return them."""
        now_s = self._db.clock()
        free = (BATCHES.c.is_open, BATCHES.c.owned_until_s < now_s)
        query = sa.select(BATCHES).where(*free).order_by(BATCHES.c.created_s).limit(limit)
        # Where others claim at the same time: their rows are not waited for.
        query = query.with_for_update(skip_locked=True)
        values = {"owner": owner, "owned_until_s": now_s + LEASE_S}

        def work(db: sa.Connection) -> list[BatchRow]:
            found = [BatchRow(*each) for each in db.execute(query)]
            changes = ((row, sa.update(BATCHES).where(*is_row(BATCHES, row.key), *free)) for row in found)
            return [
                row._replace(owner=owner)
                for row, change in changes
                if db.execute(change.values(**values)).rowcount > 0
            ]

        return await self._db.run(work)

    async def renew(self, owner: str) -> dict[Key, bool]:
        """Extend the leases of an owner; return its batches, and whether each is to be cancelled."""
        mine = (BATCHES.c.is_open, BATCHES.c.owner == owner)
        change = sa.update(BATCHES).where(*mine).values(owned_until_s=self._db.clock() + LEASE_S)
        query = sa.select(BATCHES.c.tenant, BATCHES.c.id, BATCHES.c.cancelling_s).where(*mine)

        def work(db: sa.Connection) -> dict[Key, bool]:
            db.execute(change)
            return {Key(tenant, name): asked_s > 0 for tenant, name, asked_s in db.execute(query)}

        return await self._db.run(work)

    async def release(self, owner: str, key: Key | None = None) -> None:
        """End the leases of an owner, or that of one batch, so that others go on at once."""
        change = sa.update(BATCHES).where(BATCHES.c.owner == owner).values(owner="", owned_until_s=0.0)
        if key is not None:
            change = change.where(*is_row(BATCHES, key))
        await self._db.run(lambda db: db.execute(change))

    async def save(self, key: Key, owner: str, kept: KeptBatch) -> bool:
        """Write a batch; return whether the owner is still that."""
        change = sa.update(BATCHES).where(*is_row(BATCHES, key), BATCHES.c.owner == owner)
        change = change.values(data=msgspec.json.encode(kept))
        return await self._db.run(lambda db: db.execute(change).rowcount > 0)

    async def end(self, key: Key, owner: str, kept: KeptBatch, files: Sequence[Key], ttl_s: int) -> bool:
        """Write a batch that has ended, and complete its files, at once; return as save().

        Args:
            key: of the batch.
            owner: of it.
            kept: what is written.
            files: that hold its answers, which are not kept elsewhere any more.
            ttl_s: how long these live.
        """
        completions = [completion(each, int(self._db.clock()) + ttl_s) for each in files]
        change = sa.update(BATCHES).where(*is_row(BATCHES, key), BATCHES.c.owner == owner)
        data = msgspec.json.encode(kept)
        change = change.values(data=data, is_open=False, owner="", owned_until_s=0.0, num_answer_bytes=0)

        def work(db: sa.Connection) -> bool:
            if not db.execute(change).rowcount:
                return False
            db.execute(sa.delete(ANSWERS).where(*is_row(ANSWERS, key)))
            for each in completions:
                db.execute(each)
            return True

        return await self._db.run(work)

    async def answer(self, key: Key, owner: str, answers: Sequence[Answered]) -> bool:
        """Write answers to lines that have none; return whether the owner is still that."""
        owned = sa.update(BATCHES).where(*is_row(BATCHES, key), BATCHES.c.owner == owner)

        def work(db: sa.Connection) -> bool:
            # First: it holds the row until all is written.
            if not db.execute(owned.values(owner=owner)).rowcount:
                return False
            new = [each for each in answers if self._add(db, key, each)]
            num_failed = sum(each.failed for each in new)
            counted = owned.values(
                num_completed=BATCHES.c.num_completed + len(new) - num_failed,
                num_failed=BATCHES.c.num_failed + num_failed,
                num_answer_bytes=BATCHES.c.num_answer_bytes + sum(len(each.data) for each in new),
            )
            db.execute(counted)
            return True

        return await self._db.run(work)

    def _add(self, db: sa.Connection, key: Key, answer: Answered) -> bool:
        change = self._db.insert(ANSWERS).values(**key._asdict(), **answer._asdict())
        done = db.execute(change.on_conflict_do_nothing(), execution_options={"preserve_rowcount": True})
        return bool(done.rowcount > 0)

    async def answered(self, key: Key) -> set[int]:
        """Return the numbers of the lines that have an answer."""
        query = sa.select(ANSWERS.c.line).where(*is_row(ANSWERS, key))
        return await self._db.run(lambda db: set(db.execute(query).scalars()), reads=True)

    async def answers(self, key: Key, *, failed: bool, after: int, limit: int) -> list[Answered]:
        """Return answers to lines after a number, in order."""
        columns = (ANSWERS.c.line, ANSWERS.c.failed, ANSWERS.c.data)
        query = sa.select(*columns).where(*is_row(ANSWERS, key), ANSWERS.c.failed == failed)
        query = query.where(ANSWERS.c.line > after).order_by(ANSWERS.c.line).limit(limit)
        return await self._db.run(lambda db: [Answered(*each) for each in db.execute(query)], reads=True)
