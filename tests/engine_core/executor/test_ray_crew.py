"""What the engine makes of its launcher on Ray, without Ray."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path

import pytest
import zmq

from engine_core.clock import ManualClock
from engine_core.config import EngineConfig
from engine_core.errors import ConfigError, WorkerError
from engine_core.executor.ray_crew import RayCrew
from engine_core.executor.workers import WorkersExecutor

DEADLINE_MS = 20_000


def test_without_ray_the_extra_is_named_and_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = EngineConfig(model="m", executor="ray")
    executor = WorkersExecutor(config, ManualClock(), RayCrew(config))
    with pytest.raises(ConfigError, match=r"pip install 'splitserve\[ray\]'"):
        executor.start()
    assert list(executor.sockets) == []
    executor.shutdown(1.0)


@pytest.mark.parametrize(
    ("python", "text"),
    [
        ("/bin/false", "the launcher on Ray was lost: exit code 1"),
        ("/no/such/python", "cannot start the worker: .*/no/such/python"),
    ],
)
def test_a_launcher_that_ends_or_cannot_start_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str, text: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("sys.executable", python)
    config = EngineConfig(model="m", executor="ray")
    executor = WorkersExecutor(config, ManualClock(), RayCrew(config))

    def run() -> None:
        executor.start()
        poller = zmq.Poller()
        for source in executor.sockets:
            poller.register(source, zmq.POLLIN)
        while poller.poll(DEADLINE_MS):
            executor.receive()

    with pytest.raises(WorkerError, match=text):
        run()
    executor.shutdown(0.0)
    assert os.listdir(tmp_path) == []
