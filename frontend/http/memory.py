"""Returns memory to the operating system after large requests.

The C library keeps freed memory for later allocations: after a few large bodies, hundreds of MiB that the
process does not use. Trimming takes milliseconds, so it is done in a thread, a second after a large request,
and never after small ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import Callable

# A smaller request leaves nothing worth trimming.
LARGE_BYTES = 2**20
_DELAY_S = 1.0


def find_trim() -> Callable[[], object]:
    """Return the C library's function for returning memory, or one that does nothing if it has none."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return lambda: None
    trim.argtypes = [ctypes.c_size_t]
    return lambda: trim(0)


class MemoryReturn:
    """Trims once after large requests have ended; belongs to one event loop."""

    def __init__(self, trim: Callable[[], object] | None = None, delay_s: float = _DELAY_S) -> None:
        """Create the trimmer.

        Args:
            trim: returns memory, in another thread; None means the C library's function.
            delay_s: delay after a large request in seconds, so that several share one trim.
        """
        self._trim = trim or find_trim()
        self._delay_s = delay_s
        self._due = False

    def note(self, num_bytes: int) -> None:
        """Record that so many bytes were freed."""
        if num_bytes >= LARGE_BYTES and not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(self._delay_s, self._begin)

    def _begin(self) -> None:
        self._due = False
        # During shutdown no threads can be started.
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().run_in_executor(None, self._trim)
