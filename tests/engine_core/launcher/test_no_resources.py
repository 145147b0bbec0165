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
from splitserve.engine_core.launcher import serve
from splitserve.engine_core.launcher.serve import ENGINE_NAME, ServeOptions, Server
from splitserve.engine_core.launcher.supervisor import FIRST_DELAY_S, MAX_RESTARTS, ServerState, Start
from splitserve.engine_core.process.children import Child


def refuse(*_: object, **__: object) -> int:
    raise OSError(errno.EAGAIN, "no more of them")


def test_without_a_pidfd_the_end_of_a_child_is_still_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    child = Child([sys.executable, "-c", "raise SystemExit(7)"], death_signal=signal.SIGKILL)
    assert child.pidfd == -1
    assert child.wait(20.0) == 7
    child.close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server whose children cannot be started."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(serve, "Child", refuse)
    options = ServeOptions("m", "", 0, str(tmp_path / "s"), 1, 5.0, (), (), "http", False)
    server = Server(options, ManualClock(100.0))
    yield server
    server._close()


def test_a_child_that_cannot_be_started_is_tried_again(server: Server) -> None:
    server._act([Start(ENGINE_NAME)])
    assert server._supervisor.state is ServerState.RUNNING
    assert server._supervisor.next_due_s() == 100.0 + FIRST_DELAY_S


def test_a_child_that_can_never_be_started_ends_the_server(server: Server) -> None:
    for _ in range(MAX_RESTARTS + 1):
        server._act([Start(ENGINE_NAME)])
    assert server._supervisor.state is ServerState.DONE
    assert server._supervisor.exit_code == 1
