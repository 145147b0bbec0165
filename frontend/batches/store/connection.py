"""How the file store asks its database: with a deadline, and a count of what failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa

from splitserve.frontend.batches.store.errors import FileStoreUnavailableError
from splitserve.frontend.batches.store.tables import TABLES
from splitserve.frontend.database.place import Place
from splitserve.frontend.database.sql import SqlTransactions

T = TypeVar("T")

# Longer than the databases' own limits, whose errors say more.
DEADLINE_S = 12.0


class StoreConnection:
    """The database of the file store; belongs to an event loop.

    Attributes:
        clock: returns seconds since 1970.
        insert: makes the statement of this kind of database that knows on_conflict_do_nothing().
        num_errors: how often it could not be used.
    """

    def __init__(self, place: Place, clock: Callable[[], float] = time.time) -> None:
        """Prepare; nothing is connected before the first call.

        Args:
            place: of the flag.
            clock: returns seconds since 1970; those of several frontends differ by less than a lease.

        Raises:
            ConfigError: its URL cannot be used.
        """
        try:
            self._transactions = SqlTransactions(place.url, TABLES, FileStoreUnavailableError)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise place.cannot_be_used(error) from None
        self.clock = clock
        self.insert = self._transactions.insert
        self.num_errors = 0

    async def run(self, work: Callable[[sa.Connection], T], *, reads: bool = False) -> T:
        """Do something in a transaction.

        Raises:
            FileStoreUnavailableError: it could not be done, or may have been.
        """
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self._transactions.run(work, reads=reads)
        except FileStoreUnavailableError:
            self.num_errors += 1
            raise
        except TimeoutError:
            self.num_errors += 1
            raise FileStoreUnavailableError(f"no answer within {DEADLINE_S:g} s") from None

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        await self._transactions.close()
