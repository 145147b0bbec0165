"""An engine-core process's output: shown as it arrives, except a final error, which an exception reports."""

from __future__ import annotations

from collections import deque

ERROR_PREFIX = b"engine-core: error: "
_MAX_TAIL_LINES = 20
_MAX_LINE_BYTES = 2000


class EngineOutput:
    """Splits output into lines; no I/O.

    Attributes:
        tail: the last lines that are not blank, each cut to 2000 bytes.
    """

    def __init__(self) -> None:
        self.tail: deque[str] = deque(maxlen=_MAX_TAIL_LINES)
        self._line = b""
        self._num_shown = 0
        self._held = b""

    def push(self, data: bytes) -> bytes:
        """Take what was written; return what is to be shown now.

        A line that begins as errors do is held until another follows. Progress bars go on within a line, so
        all other text is shown before its line ends.
        """
        *ended, rest = (self._line + data).split(b"\n")
        shown = b"".join(self._end_line(line) for line in ended)
        if not ended and len(rest) > _MAX_LINE_BYTES:
            # Of an endless line the end is remembered; whatever it was, it is no error of ours.
            return shown + self._cut(rest)
        self._line = rest
        return shown + self._show_begun()

    def finish(self) -> bytes:
        """Return what was held back, if no exception has reported it."""
        held, self._held = self._held, b""
        return held + self._line[self._num_shown :]

    def error(self) -> str | None:
        """Return the error that the output ends with, for an exception; it is not shown any more."""
        if not self._held:
            return None
        self._held = b""
        return self.tail[-1].removeprefix(ERROR_PREFIX.decode())

    def _end_line(self, line: bytes) -> bytes:
        shown, self._num_shown = self._num_shown, 0
        if line.strip():
            self.tail.append(line[:_MAX_LINE_BYTES].decode(errors="replace"))
        before, self._held = self._held, b""
        if line.startswith(ERROR_PREFIX) and not shown:
            self._held = line + b"\n"
            return before
        return before + line[shown:] + b"\n"

    def _show_begun(self) -> bytes:
        if self._line.startswith(ERROR_PREFIX) or ERROR_PREFIX.startswith(self._line):
            return b""
        before, self._held = self._held, b""
        new, self._num_shown = self._line[self._num_shown :], len(self._line)
        return before + new

    def _cut(self, line: bytes) -> bytes:
        before, self._held = self._held, b""
        new = line[self._num_shown :]
        self._line = line[-_MAX_LINE_BYTES:]
        self._num_shown = len(self._line)
        return before + new
