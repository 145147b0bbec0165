"""Transactions in SQLite or PostgreSQL, through SQLAlchemy, on threads of their own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

T = TypeVar("T")

WAIT_S = 5
# SQLite lets one write at a time; the server of PostgreSQL is waited for, not computed with.
_NUM_THREADS = {"sqlite": 1, "postgresql": 4}
_INSERTS: dict[str, Callable[[sa.Table], Any]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
# Any number that no other program on the same database is likely to lock.
_SCHEMA_LOCK = 0x5370_6C69_7453


class SqlTransactions:
    """One database; belongs to an event loop, which its threads never keep waiting.

    Attributes:
        insert: makes the statement of this kind of database that knows on_conflict_do_update().
    """

    def __init__(self, url: str, tables: sa.MetaData, unavailable: Callable[[str], Exception]) -> None:
        """Prepare; the first call connects, and makes the tables if there are none.

        Args:
            url: as SQLAlchemy has it, sqlite:///PATH or postgresql+psycopg://...
            tables: that are needed.
            unavailable: makes the error of a database that cannot be used, of words for the log.

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
        self.insert = _INSERTS[self._kind]
        self._reading = self._engine.execution_options(reads=True)
        self._tables = tables
        self._unavailable = unavailable
        self._has_tables = False
        self._threads: ThreadPoolExecutor | None = ThreadPoolExecutor(
            _NUM_THREADS[self._kind], thread_name_prefix="database"
        )

    async def run(self, work: Callable[[sa.Connection], T], *, reads: bool = False) -> T:
        """Do something in a transaction, on one of the threads; raises the error of the constructor.

        Args:
            work: what to do.
            reads: it changes nothing.
        """
        if self._threads is None:
            raise self._unavailable("it is closed")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._in_transaction, work, reads)

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        threads, self._threads = self._threads, None
        if threads is not None:
            await asyncio.get_running_loop().run_in_executor(threads, self._engine.dispose)
            threads.shutdown(wait=False)

    def _in_transaction(self, work: Callable[[sa.Connection], T], reads: bool) -> T:
        try:
            if not self._has_tables:
                self._make_tables()
            with (self._reading if reads else self._engine).begin() as db:
                return work(db)
        except (sa.exc.SQLAlchemyError, OSError) as error:
            # Words of SQLAlchemy's hold the statement and its values: prompts do not belong into a log.
            said = getattr(error, "orig", None) or error
            raise self._unavailable(f"{type(said).__name__}: {said}") from None

    def _make_tables(self) -> None:
        if self._path:
            # Made here, readable by its owner only; SQLite gives its other files the same mode.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with self._engine.begin() as db:
            if self._kind == "postgresql":
                # Two that begin together would both find no table.
                db.execute(sa.select(sa.func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
            self._tables.create_all(db)
        self._has_tables = True


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
