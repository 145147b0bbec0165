"""What an engine-core prints while it starts: each stage's duration, and a progress bar for the weights."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.process.logs import log_event

if TYPE_CHECKING:
    from tqdm import tqdm

_log = logging.getLogger("engine_core")


class StartupReport:
    """Reports the stages of a start, each with its duration in seconds; used by the busy loop's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begin_s = clock.monotonic()
        self._stage_begin_s = self._begin_s
        self._stage = ""
        self._bar: tqdm | None = None

    def stage(self, name: str) -> None:
        """End the current stage and begin another."""
        self._end_stage()
        self._stage = name

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        """Show how many bytes of the weights are loaded."""
        if not sys.stderr.isatty():
            return
        if self._bar is None:
            # Only for a terminal: it takes a sixth of an engine's imports.
            from tqdm import tqdm

            self._bar = tqdm(
                total=total_bytes, desc=self._stage, unit="B", unit_scale=True, leave=False, file=sys.stderr
            )
        self._bar.update(done_bytes - self._bar.n)

    def done(self) -> float:
        """End the last stage; return the seconds since the first began."""
        self._end_stage()
        return self._clock.monotonic() - self._begin_s

    def close(self) -> None:
        """Clear the progress bar, also after a failed start."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _end_stage(self) -> None:
        self.close()
        now_s = self._clock.monotonic()
        if self._stage:
            log_event(
                _log, logging.INFO, "start-up stage", stage=self._stage, took_s=now_s - self._stage_begin_s
            )
        self._stage = ""
        self._stage_begin_s = now_s
