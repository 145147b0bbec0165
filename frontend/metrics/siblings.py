"""The frontends of one launch exchange their metrics, so that any of them can serve those of all.

Each listens on a Unix socket in the launch's private directory and sends its exposition to every client.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, Callable

from splitserve.engine_core.process.runtime_directory import leave_runtime_directory
from splitserve.frontend.launch import Launch

# A few hundred kilobytes are usual with many models; anything longer is not a valid response.
MAX_BYTES = 16 * 2**20
# The engine creates the directory, some time after the frontends have started.
BIND_RETRY_S = 0.2
BACKLOG = 128


class SiblingFrontends:
    """The other frontends of a launch; belongs to the event loop."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    @contextlib.asynccontextmanager
    async def answering(self, figures: Callable[[], bytes]) -> AsyncGenerator[None, None]:
        """Serve the others while the context is open.

        Args:
            figures: returns the exposition of this frontend alone.
        """
        task = asyncio.create_task(self._answer(figures), name="siblings")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def ask(self, deadline_s: float) -> dict[int, bytes]:
        """Return the expositions of the others that respond in time, by frontend number."""
        numbers = self._launch.others
        answers = await asyncio.gather(*(self._ask(number, deadline_s) for number in numbers))
        return {number: text for number, text in zip(numbers, answers, strict=True) if text}

    async def _answer(self, figures: Callable[[], bytes]) -> None:
        async def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(figures())
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

        path = self._path(self._launch.number)
        listener = await _bind_when_possible(path)
        try:
            async with await asyncio.start_unix_server(tell, sock=listener) as server:
                await server.serve_forever()
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
            # The last process to leave removes what the engine could not.
            leave_runtime_directory(self._launch.directory)

    async def _ask(self, number: int, deadline_s: float) -> bytes:
        try:
            async with asyncio.timeout(deadline_s):
                reader, writer = await asyncio.open_unix_connection(self._path(number))
                try:
                    return await _read_all(reader)
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return b""

    def _path(self, number: int) -> str:
        # Not longer than the engine's own name, engine.sock, for up to 130 numbers.
        return f"{self._launch.directory}/api{number}.sock"


async def _bind_when_possible(path: str) -> socket.socket:
    while True:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The number is ours alone: a file there was left by a predecessor that was killed.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            listener.bind(path)
            os.chmod(path, 0o600)
            listener.listen(BACKLOG)
            return listener
        except OSError:
            listener.close()
        await asyncio.sleep(BIND_RETRY_S)


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    text = bytearray()
    while data := await reader.read(65536):
        text += data
        if len(text) > MAX_BYTES:
            return b""
    return bytes(text)
