"""The worker's end of the link where no kernel tells it of its parent's death."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from splitserve.engine_core.ipc.transport import CLIENT_HWM
from splitserve.engine_core.ipc.worker_messages import FromWorkerMessage, LoadProgress, WorkerHello
from splitserve.engine_core.settings.worker_settings import WorkerPlace
from splitserve.worker import engine_link, loop
from splitserve.worker.engine_link import EngineGoneError, EngineLink
from tests.worker.loop.engine import FakeEngine

NO_PARENT = 2**22 + 1


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as made:
        yield made


@pytest.fixture(autouse=True)
def _quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_link, "_ENGINE_CHECK_MS", 20)
    monkeypatch.setattr(engine_link, "_LAST_WORDS_MS", 0)


def place(address: str) -> WorkerPlace:
    return WorkerPlace(connect=address, rank=12)


def test_an_orphan_that_waits_for_a_step_notices(
    engine: FakeEngine, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    link = EngineLink(context, place(engine.address), NO_PARENT)
    try:
        link.send(WorkerHello(1, "x", 12, 1))
        assert engine.expect(WorkerHello).rank == 12
        assert engine.identity == b"12"
        with pytest.raises(EngineGoneError):
            link.receive()
    finally:
        link.close()


def test_an_orphan_whose_messages_nobody_takes_notices(
    short_folder: Path, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    link = EngineLink(context, place(f"ipc://{short_folder}/none.sock"), NO_PARENT)
    try:
        for _ in range(CLIENT_HWM):
            link.send(WorkerHello(1, "x", 12, 1))
        with pytest.raises(EngineGoneError):
            link.send(WorkerHello(1, "x", 12, 1))
    finally:
        link.close()


def test_progress_is_thinned_but_its_ends_always_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    sent: list[LoadProgress] = []

    class Recorder(EngineLink):
        def __init__(self) -> None:
            """There is no engine."""

        def send(self, message: FromWorkerMessage) -> None:
            assert isinstance(message, LoadProgress)
            sent.append(message)

    report = loop._ProgressReporter(Recorder())
    for loaded in range(0, 1001):
        report(loaded, 1000)
        now += 0.001
    assert (sent[0].loaded_bytes, sent[-1].loaded_bytes) == (0, 1000)
    assert 9 <= len(sent) <= 12
