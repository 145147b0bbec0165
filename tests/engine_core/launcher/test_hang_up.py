"""What a hang-up signal means to a server whose terminal is gone."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.launcher.launcher import Launcher
from splitserve.engine_core.launcher.options import LaunchOptions
from splitserve.engine_core.launcher.supervisor import SupervisorState
from splitserve.engine_core.process import terminal
from splitserve.engine_core.process.terminal import HANG_UP_S


def refuse(*_: object, **__: object) -> int:
    raise OSError(errno.EAGAIN, "no more of them")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> Iterator[Launcher]:
    """A launcher without children that had a terminal when it was started, and has none any more."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("splitserve.engine_core.launcher.child_processes.Child", refuse)
    monkeypatch.setattr(terminal, "_has_terminal", lambda: True)
    options = LaunchOptions("m", "", 0, str(tmp_path / "s"), 1, 5.0, (), (), {}, "http", False)
    made = Launcher(options, clock)
    monkeypatch.setattr(terminal, "_has_terminal", lambda: False)
    yield made
    made._close()


def test_a_signal_from_the_end_of_the_terminal_stops_the_server(launcher: Launcher) -> None:
    launcher._on_signal(signal.SIGHUP)
    assert launcher._supervisor.state is not SupervisorState.RUNNING
    assert launcher._supervisor.rolling.num_begun == 0


def test_a_server_in_the_background_that_lost_its_terminal_is_restarted(
    launcher: Launcher, clock: ManualClock
) -> None:
    launcher._look_at_hearts()
    clock.advance(HANG_UP_S)
    launcher._on_signal(signal.SIGHUP)
    assert launcher._supervisor.state is SupervisorState.RUNNING
    assert launcher._supervisor.rolling.num_begun == 1
