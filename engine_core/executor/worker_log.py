"""What did a worker print? Passed on to our stderr, with the last lines kept for error messages."""

from __future__ import annotations

import contextlib
import sys
from collections import deque

MAX_LINES = 20
MAX_LINE_BYTES = 2000


class WorkerLog:
    """Keeps at most 20 lines of 2000 bytes; fed by the busy loop's thread."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._partial = b""

    def feed(self, data: bytes) -> None:
        """Take what was read from the worker's pipe."""
        if not data:
            return
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(data.decode(errors="replace"))
            sys.stderr.flush()
        *complete, partial = (self._partial + data).split(b"\n")
        self._lines.extend(_shown(line) for line in complete if line.strip())
        self._partial = partial[-MAX_LINE_BYTES:]

    def tail(self) -> str:
        """Return the last lines that are not empty, the unfinished one too."""
        last = [_shown(self._partial)] if self._partial.strip() else []
        return "\n".join([*self._lines, *last][-MAX_LINES:])


def _shown(line: bytes) -> str:
    return line[:MAX_LINE_BYTES].decode(errors="replace").rstrip()
