"""Rows in SQLite or PostgreSQL, through SQLAlchemy, on threads of their own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from splitserve.frontend.response_store.errors import StoreUnavailableError
from splitserve.frontend.response_store.rows import Events, Row, RowKey

T = TypeVar("T")

WAIT_S = 5
# SQLite lets one write at a time; the server of PostgreSQL is waited for, not computed with.
_NUM_THREADS = {"sqlite": 1, "postgresql": 4}
_INSERTS: dict[str, Callable[[sa.Table], Any]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
# Any number that no other program on the same database is likely to lock.
_SCHEMA_LOCK = 0x5370_6C69_7453
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
    """One database; belongs to an event loop, which its threads never keep waiting."""

    def __init__(self, url: str) -> None:
        """Prepare; the first call connects, and makes the tables if there are none.

        Args:
            url: as SQLAlchemy has it, sqlite:///PATH or postgresql+psycopg://...

        Raises:
            ImportError: the driver is not installed.
            ValueError: it is no such URL.
        """
        parsed = _parse(url)
        self._kind = parsed.get_backend_name()
        self._path = (parsed.database or "") if self._kind == "sqlite" else ""
        self._engine = sa.create_engine(
            parsed,
            pool_size=_NUM_THREADS[self._kind],
            max_overflow=0,
            pool_pre_ping=self._kind != "sqlite",
            connect_args=_connect_args(parsed),
        )
        if self._kind == "sqlite":
            sa.event.listen(self._engine, "connect", _set_up_sqlite)
            sa.event.listen(self._engine, "begin", _begin_sqlite)
        self._reading = self._engine.execution_options(reads=True)
        self._insert = _INSERTS[self._kind]
        self._has_tables = False
        self._threads: ThreadPoolExecutor | None = ThreadPoolExecutor(
            _NUM_THREADS[self._kind], thread_name_prefix="response-store"
        )

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
        threads, self._threads = self._threads, None
        if threads is not None:
            await asyncio.get_running_loop().run_in_executor(threads, self._engine.dispose)
            threads.shutdown(wait=False)

    async def _run(self, work: Callable[[sa.Connection], T], *, reads: bool = False) -> T:
        """Do something in a transaction, on one of the threads."""
        if self._threads is None:
            raise StoreUnavailableError("it is closed")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._in_transaction, work, reads)

    def _in_transaction(self, work: Callable[[sa.Connection], T], reads: bool) -> T:
        try:
            if not self._has_tables:
                self._make_tables()
            with (self._reading if reads else self._engine).begin() as db:
                return work(db)
        except (sa.exc.SQLAlchemyError, OSError) as error:
            # Words of SQLAlchemy's hold the statement and its values: prompts do not belong into a log.
            said = getattr(error, "orig", None) or error
            raise StoreUnavailableError(f"{type(said).__name__}: {said}") from None

    def _make_tables(self) -> None:
        if self._path:
            # Made here, readable by its owner only; SQLite gives its other files the same mode.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with self._engine.begin() as db:
            if self._kind == "postgresql":
                # Two that begin together would both find no table.
                db.execute(sa.select(sa.func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
            _METADATA.create_all(db)
        self._has_tables = True

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


def _parse(url: str) -> sa.URL:
    try:
        return sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise ValueError(str(error)) from None


def _connect_args(url: sa.URL) -> dict[str, object]:
    if url.get_backend_name() == "sqlite":
        return {"timeout": WAIT_S}
    given = url.query
    bounds = {"connect_timeout": WAIT_S, "options": f"-c statement_timeout={WAIT_S * 1000}"}
    return {name: value for name, value in bounds.items() if name not in given}


def _set_up_sqlite(connection: Any, _record: object) -> None:
    # Transactions are begun below.
    connection.isolation_level = None
    # Readers and the writer do not wait for each other, what is deleted is overwritten, events go with rows.
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that reads first and then writes could not wait for another that writes.
    reads = connection.get_execution_options().get("reads")
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
