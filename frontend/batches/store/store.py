"""The file store as a whole: files, batches, what they may take together, and its upkeep."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager

from splitserve.engine_core.process.logs import log_event
from splitserve.frontend.batches.store.batches import StoredBatches
from splitserve.frontend.batches.store.connection import StoreConnection
from splitserve.frontend.batches.store.errors import FileStoreUnavailableError
from splitserve.frontend.batches.store.files import StoredFiles
from splitserve.frontend.database.tended import tended

logger = logging.getLogger("frontend")

TIDY_INTERVAL_S = 60.0


class FileStore:
    """One per process; belongs to an event loop.

    Attributes:
        files, batches: what is in it.
        clock: returns seconds since 1970.
        max_bytes: of all files and answers together.
    """

    def __init__(self, connection: StoreConnection, max_bytes: int) -> None:
        self.files = StoredFiles(connection)
        self.batches = StoredBatches(connection)
        self.clock = connection.clock
        self.max_bytes = max_bytes
        self._connection = connection

    @property
    def num_errors(self) -> int:
        """How often the database could not be used."""
        return self._connection.num_errors

    async def has_room(self, num_bytes: int = 0) -> bool:
        """Return whether so much fits beside what there is.

        Raises:
            FileStoreUnavailableError: nobody can tell.
        """
        return await self.files.num_bytes() + num_bytes < self.max_bytes

    def running(self) -> AbstractAsyncContextManager[None]:
        """Tidy up now and then while the context is open; close the database at its end."""
        return tended(self._tidy_for_ever(), "tidy-files", self._connection.close)

    async def _tidy_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TIDY_INTERVAL_S)
            try:
                await self.files.tidy()
            except FileStoreUnavailableError as error:
                log_event(logger, logging.WARNING, "file_store_error", detail=str(error))
