"""Pings and utility calls to one engine that are waiting for a reply."""

from __future__ import annotations

import asyncio

from splitserve.engine_core.errors import EngineUnavailableError
from splitserve.engine_core.ipc.messages import CallResult, EngineMessage, Pong

MAX_CALLS = 256
SHUTTING_DOWN = "this frontend is shutting down"


class PendingCalls:
    """Pending replies by call number, at most MAX_CALLS; belongs to one event loop."""

    def __init__(self, address: str) -> None:
        """Start with no calls; the engine's address is used in error messages."""
        self._address = address
        self._answers: dict[int, asyncio.Future[Pong | CallResult]] = {}
        self._closed = False

    def check_room(self) -> None:
        """Check before a call is sent.

        Raises:
            EngineUnavailableError: too many calls are pending, or the connection is closed.
        """
        if self._closed:
            raise EngineUnavailableError(SHUTTING_DOWN)
        if len(self._answers) >= MAX_CALLS:
            raise EngineUnavailableError(
                f"{MAX_CALLS} calls to the engine are already waiting for a response"
            )

    async def answer(self, number: int, timeout_s: float) -> Pong | CallResult:
        """Wait for the reply to a call that was just sent.

        Args:
            number: nonce of the Ping, or call_id of the Call.
            timeout_s: how long to wait, in seconds.

        Raises:
            EngineUnavailableError: no reply in time.
        """
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            where = f"the engine at {self._address}"
            raise EngineUnavailableError(f"{where} did not answer within {timeout_s:g} s") from None
        finally:
            del self._answers[number]

    def settle(self, message: EngineMessage) -> None:
        """Look at every message of the engine; a reply wakes the caller that waits for it."""
        if isinstance(message, Pong):
            number = message.nonce
        elif isinstance(message, CallResult):
            number = message.call_id
        else:
            return
        answer = self._answers.get(number)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def fail(self, reason: str) -> None:
        """Fail all pending calls: nobody will reply."""
        for answer in self._answers.values():
            if not answer.done():
                # An error, not a cancellation: the waiting task was not cancelled.
                answer.set_exception(EngineUnavailableError(reason))

    def close(self) -> None:
        """Fail all pending calls and refuse new ones."""
        self._closed = True
        self.fail(SHUTTING_DOWN)
