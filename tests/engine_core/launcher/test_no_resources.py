"""What the system may refuse for a moment or for good: new processes, and descriptors of them."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.launcher.child_processes import ENGINE_NAME
from splitserve.engine_core.launcher.child_state import Start
from splitserve.engine_core.launcher.launcher import Launcher
from splitserve.engine_core.launcher.options import LaunchOptions
from splitserve.engine_core.launcher.supervisor import SupervisorState
from splitserve.engine_core.process.children import Child
from splitserve.engine_core.process.restart_intensity import MAX_RESTARTS


def refuse(*_: object, **__: object) -> int:
    raise OSError(errno.EAGAIN, "no more of them")


def test_without_a_pidfd_the_end_of_a_child_is_still_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    child = Child([sys.executable, "-c", "raise SystemExit(7)"], death_signal=signal.SIGKILL)
    assert child.pidfd == -1
    assert child.wait(20.0) == 7
    child.close()


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    """A launcher whose children cannot be started."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("splitserve.engine_core.launcher.child_processes.Child", refuse)
    options = LaunchOptions("m", "", 0, str(tmp_path / "s"), 1, 5.0, (), (), {}, "http", False)
    made = Launcher(options, ManualClock(100.0))
    yield made
    made._close()


def test_a_child_that_cannot_be_started_is_tried_again(launcher: Launcher) -> None:
    launcher._act([Start(ENGINE_NAME)])
    assert launcher._supervisor.state is SupervisorState.RUNNING
    assert launcher._supervisor.next_due_s() == 100.0


def test_a_child_that_can_never_be_started_ends_the_launcher(launcher: Launcher) -> None:
    for _ in range(MAX_RESTARTS + 1):
        launcher._act([Start(ENGINE_NAME)])
    assert launcher._supervisor.state is SupervisorState.DONE
    assert launcher._supervisor.exit_code == 1
