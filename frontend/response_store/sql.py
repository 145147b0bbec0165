"""Rows in SQLite or PostgreSQL."""

from __future__ import annotations

import sqlalchemy as sa

from splitserve.frontend.database.sql import SqlTransactions
from splitserve.frontend.response_store.errors import StoreUnavailableError
from splitserve.frontend.response_store.rows import Events, Row, RowKey

# How many rows are looked at together when space is made.
_BATCH = 64

_METADATA = sa.MetaData()
_ROWS = sa.Table(
    "splitserve_responses",
    _METADATA,
    sa.Column("tenant", sa.String(64), primary_key=True),
    sa.Column("id", sa.String(128), primary_key=True),
    sa.Column("created_s", sa.Double, nullable=False),
    sa.Column("expires_s", sa.BigInteger, nullable=False, index=True),
    sa.Column("owner", sa.String(32), nullable=False, index=True),
    sa.Column("num_bytes", sa.BigInteger, nullable=False),
    sa.Column("num_event_bytes", sa.BigInteger, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
    # Sizes are added up without reading the rows.
    sa.Index("splitserve_responses_age", "created_s", "num_bytes", "num_event_bytes"),
)
_EVENTS = sa.Table(
    "splitserve_response_events",
    _METADATA,
    sa.Column("tenant", sa.String(64), primary_key=True),
    sa.Column("id", sa.String(128), primary_key=True),
    sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("last", sa.BigInteger, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.ForeignKeyConstraint(["tenant", "id"], [_ROWS.c.tenant, _ROWS.c.id], ondelete="CASCADE"),
)
_LEASES = sa.Table(
    "splitserve_response_leases",
    _METADATA,
    sa.Column("owner", sa.String(32), primary_key=True),
    sa.Column("until_s", sa.Double, nullable=False),
)


class SqlDatabase:
    """One database; belongs to an event loop, which it never keeps waiting."""

    def __init__(self, url: str) -> None:
        """Prepare; the first call connects, and makes the tables if there are none.

        Args:
            url: as SQLAlchemy has it, sqlite:///PATH or postgresql+psycopg://...

        Raises:
            ImportError: the driver is not installed.
            ValueError: it is no such URL.
        """
        self._transactions = SqlTransactions(url, _METADATA, StoreUnavailableError)
        self._run = self._transactions.run
        self._insert = self._transactions.insert

    async def put(self, row: Row) -> None:
        """As Database."""
        await self._run(lambda db: self._upsert(db, row, None))

    async def add(self, row: Row) -> bool:
        """As Database."""
        return await self._run(lambda db: self._upsert(db, row, _ROWS.c.owner == ""))

    async def replace(self, row: Row, owner: str) -> bool:
        """As Database."""
        change = sa.update(_ROWS).where(*_is(row.key), _ROWS.c.owner == owner).values(**_values(row))
        return await self._run(lambda db: db.execute(change).rowcount > 0)

    async def append(self, key: RowKey, owner: str, events: Events) -> bool:
        """As Database."""
        counted = sa.update(_ROWS).where(*_is(key), _ROWS.c.owner == owner)
        counted = counted.values(num_event_bytes=_ROWS.c.num_event_bytes + len(events.data))
        change = self._insert(_EVENTS).values(**key._asdict(), **events._asdict())
        # Of an answer that did not arrive the caller does not know that all was written.
        again = {"last": events.last, "data": events.data}
        change = change.on_conflict_do_update(index_elements=["tenant", "id", "first"], set_=again)

        def work(db: sa.Connection) -> bool:
            if not db.execute(counted).rowcount:
                return False
            db.execute(change)
            return True

        return await self._run(work)

    async def events(self, key: RowKey, after: int) -> list[Events]:
        """As Database."""
        query = sa.select(_EVENTS.c.first, _EVENTS.c.last, _EVENTS.c.data).order_by(_EVENTS.c.first)
        query = query.where(*_is(key, _EVENTS), _EVENTS.c.last > after)
        return await self._run(lambda db: [Events(*each) for each in db.execute(query)], reads=True)

    async def get(self, key: RowKey, now_s: float) -> Row | None:
        """As Database."""
        columns = (_ROWS.c.created_s, _ROWS.c.expires_s, _ROWS.c.owner, _ROWS.c.data)
        query = sa.select(*columns).where(*_is(key), _ROWS.c.expires_s > now_s)
        found = await self._run(lambda db: db.execute(query).first(), reads=True)
        return None if found is None else Row(key, *found)

    async def delete(self, key: RowKey, now_s: float) -> bool:
        """As Database."""
        change = sa.delete(_ROWS).where(*_is(key), _ROWS.c.expires_s > now_s)
        return await self._run(lambda db: db.execute(change).rowcount > 0)

    async def renew(self, owner: str, now_s: float, lease_s: float) -> set[RowKey]:
        """As Database."""
        until_s = now_s + lease_s
        lease = self._insert(_LEASES).values(owner=owner, until_s=until_s)
        lease = lease.on_conflict_do_update(index_elements=["owner"], set_={"until_s": until_s})
        query = sa.select(_ROWS.c.tenant, _ROWS.c.id).where(_ROWS.c.owner == owner)

        def work(db: sa.Connection) -> set[RowKey]:
            db.execute(lease)
            return {RowKey(*each) for each in db.execute(query)}

        return await self._run(work)

    async def is_alive(self, owner: str, now_s: float) -> bool:
        """As Database."""
        query = sa.select(_LEASES.c.owner).where(_LEASES.c.owner == owner, _LEASES.c.until_s > now_s)
        return await self._run(lambda db: db.execute(query).first() is not None, reads=True)

    async def tidy(self, now_s: float, max_bytes: int) -> int:
        """As Database."""
        return await self._run(lambda db: _tidy(db, now_s, max_bytes))

    async def close(self) -> None:
        """As Database."""
        await self._transactions.close()

    def _upsert(self, db: sa.Connection, row: Row, condition: sa.ColumnElement[bool] | None) -> bool:
        values = _values(row) | {"num_event_bytes": 0}
        change = self._insert(_ROWS).values(tenant=row.key.tenant, id=row.key.id, **values)
        change = change.on_conflict_do_update(index_elements=["tenant", "id"], set_=values, where=condition)
        done = db.execute(change, execution_options={"preserve_rowcount": True})
        if done.rowcount < 1:
            return False
        # Of the response that was there before.
        db.execute(sa.delete(_EVENTS).where(*_is(row.key, _EVENTS)))
        return True


def _is(key: RowKey, table: sa.Table = _ROWS) -> tuple[sa.ColumnElement[bool], ...]:
    return table.c.tenant == key.tenant, table.c.id == key.id


def _values(row: Row) -> dict[str, object]:
    return {
        "created_s": row.created_s,
        "expires_s": row.expires_s,
        "owner": row.owner,
        "num_bytes": len(row.data),
        "data": row.data,
    }


def _tidy(db: sa.Connection, now_s: float, max_bytes: int) -> int:
    db.execute(sa.delete(_ROWS).where(_ROWS.c.expires_s <= now_s))
    db.execute(sa.delete(_LEASES).where(_LEASES.c.until_s <= now_s))
    size = _ROWS.c.num_bytes + _ROWS.c.num_event_bytes
    excess = (db.execute(sa.select(sa.func.sum(size))).scalar() or 0) - max_bytes
    owned = _ROWS.c.owner.in_(sa.select(_LEASES.c.owner))
    oldest = (
        sa.select(_ROWS.c.tenant, _ROWS.c.id, size).where(~owned).order_by(_ROWS.c.created_s).limit(_BATCH)
    )
    num_evicted = 0
    while excess > 0 and (found := db.execute(oldest).all()):
        for tenant, row_id, num_bytes in found:
            if excess > 0:
                db.execute(sa.delete(_ROWS).where(*_is(RowKey(tenant, row_id))))
                excess -= num_bytes
                num_evicted += 1
    return num_evicted
