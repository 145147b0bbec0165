"""Gives memory back to the system after large requests.

The C library keeps what was freed for the next allocation: after a few large bodies, hundreds of MiB that the
process does not use. Asking for it back takes milliseconds, so it is done in a thread, a second after a large
request, and never because of small ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import Callable

# A request that held less leaves nothing worth asking for.
LARGE_BYTES = 2**20
_DELAY_S = 1.0


def find_trim() -> Callable[[], object]:
    """Return the C library's way of giving memory back; nothing is done where it has none."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return lambda: None
    trim.argtypes = [ctypes.c_size_t]
    return lambda: trim(0)


class MemoryReturn:
    """Trims once after large requests have ended; belongs to one event loop."""

    def __init__(self, trim: Callable[[], object] | None = None, delay_s: float = _DELAY_S) -> None:
        """Prepare.

        Args:
            trim: gives memory back, on another thread; the C library's way if None.
            delay_s: from the end of a large request, so that several are one.
        """
        self._trim = trim or find_trim()
        self._delay_s = delay_s
        self._due = False

    def note(self, num_bytes: int) -> None:
        """Hear that so many bytes were let go."""
        if num_bytes >= LARGE_BYTES and not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(self._delay_s, self._begin)

    def _begin(self) -> None:
        self._due = False
        # While the process ends, threads are no longer started.
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().run_in_executor(None, self._trim)
