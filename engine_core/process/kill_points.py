"""Named places in the life of each process at which tests kill or stop it; nothing happens outside of tests.

SPLITSERVE_KILL_POINT="NAME[:COUNT[:SIGNAL]]" makes the process signal itself when it reaches NAME for the
COUNTth time (the first by default), with SIGKILL unless another signal is named.

SPLITSERVE_KILL_POINT="@PATH" reads that order from a file whenever there is one, so that processes that run
can be given one. It is carried out once: the process that strikes first renames the file to PATH.PID, and
whoever takes its place finds none.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

KILL_POINTS = frozenset(
    (
        # engine-core
        "engine.prepared",
        "engine.bound",
        "engine.request_added",
        "engine.step_planned",
        "engine.step_submitted",
        "engine.output_received",
        "engine.output_applied",
        "engine.outputs_sent",
        "engine.attaching",
        "engine.recovering",
        "engine.handing_over",
        # worker
        "worker.hello_sent",
        "worker.loading",
        "worker.ready",
        "worker.step_received",
        "worker.step_computed",
        "worker.output_sent",
        "worker.waiting_for_engine",
        "worker.attached",
        # api-frontend
        "frontend.started",
        "frontend.request_sent",
        "frontend.outputs_received",
        "frontend.resuming",
        "frontend.resumed",
    )
)


class _Order:
    """One order, and how often its place has still to be reached."""

    def __init__(self, text: str) -> None:
        self.name, _, rest = text.partition(":")
        count, _, name = rest.partition(":")
        self._signal = getattr(signal, name or "SIGKILL")
        self._left = int(count or 1)

    def is_due(self) -> bool:
        self._left -= 1
        return self._left == 0

    def strike(self) -> None:
        os.kill(os.getpid(), self._signal)


class _OrderFile:
    """The order in a file that comes and goes."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._text = ""
        self._order = _Order("")

    def reach(self, name: str) -> None:
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            text = ""
        if text != self._text:
            self._text, self._order = text, _Order(text)
        if text and name == self._order.name and self._order.is_due():
            self._text = ""
            with contextlib.suppress(FileNotFoundError):
                self._path.rename(f"{self._path}.{os.getpid()}")
                self._order.strike()


_setting = os.environ.get("SPLITSERVE_KILL_POINT", "")
_file = _OrderFile(_setting[1:]) if _setting.startswith("@") else None
_order = _Order("" if _file else _setting)


def reach(name: str) -> None:
    """Mark a kill point; must be one of KILL_POINTS."""
    if _setting:
        _reach(name)


def _reach(name: str) -> None:
    if _file is not None:
        _file.reach(name)
    elif name == _order.name and _order.is_due():
        _order.strike()
