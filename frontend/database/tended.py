"""A task that looks after a database for as long as the database is in use."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine


@contextlib.asynccontextmanager
async def tended(
    tidying: Coroutine[None, None, None], name: str, close: Callable[[], Awaitable[None]]
) -> AsyncGenerator[None, None]:
    """Run a task while the context is open; close the database at its end.

    Args:
        tidying: the task, which does not end by itself.
        name: of the task.
        close: closes the database.
    """
    task = asyncio.create_task(tidying, name=name)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await close()
