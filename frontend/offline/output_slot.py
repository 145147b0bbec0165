"""Where a stream's outputs wait between the engine's thread and a caller's event loop."""

from __future__ import annotations

import asyncio
import copy
import threading
from dataclasses import replace

from splitserve.frontend.offline.outputs import RequestOutput


class OutputSlot:
    """Holds the newest output of a stream, which has all that came before: a slow caller loses nothing.

    Made on the caller's event loop; put() and end() are called on another thread.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._filled = asyncio.Event()
        self._output: RequestOutput | None = None
        self._error: BaseException | None = None
        self._is_ended = False

    def put(self, output: RequestOutput) -> None:
        """Take a copy of an output in place of the one before, if the caller has not fetched that."""
        snapshot = _snapshot(output)
        with self._lock:
            self._output = snapshot
        self._wake()

    def end(self, error: BaseException | None = None) -> None:
        """Tell that nothing more comes, and why if that is an error."""
        with self._lock:
            self._is_ended, self._error = True, error
        self._wake()

    async def take(self) -> RequestOutput | None:
        """Wait for the next output; None after the last.

        Raises:
            BaseException: what the stream ended with.
        """
        while True:
            with self._lock:
                output, self._output = self._output, None
                is_ended, error = self._is_ended, self._error
                self._filled.clear()
            if output is not None:
                return output
            if error is not None:
                raise error
            if is_ended:
                return None
            await self._filled.wait()

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._filled.set)
        except RuntimeError:
            # The caller's loop has ended, and nobody waits any more.
            return


def _snapshot(output: RequestOutput) -> RequestOutput:
    """Return a copy that does not grow; entries of logprobs, which do not change, are shared."""
    completions = [
        replace(each, token_ids=each.token_ids.copy(), logprobs=copy.copy(each.logprobs))
        for each in output.outputs
    ]
    return replace(output, outputs=completions)
