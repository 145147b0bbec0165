"""Notices that a client hangs up while the request's task is busy with something else."""

from __future__ import annotations

import asyncio
from types import TracebackType

from starlette.types import Receive


class ClientGoneError(Exception):
    """The client closed the connection before the response was complete."""


class ClientWatch:
    """Cancels the body of `async with` when the client leaves and turns that into ClientGoneError.

    The request's body must already have been read completely.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "requests run in tasks"
        self._task = task
        self._num_cancels = task.cancelling()
        self._watcher = asyncio.create_task(self._watch(), name="client-watch")

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        # Another cancellation on top of ours (shutdown, stall) is passed on.
        if self._gone and self._task.uncancel() <= self._num_cancels and kind is asyncio.CancelledError:
            raise ClientGoneError from error
