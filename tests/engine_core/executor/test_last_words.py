"""What a worker says before it ends is heard, however late libzmq reads it and whatever came before."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest
import zmq

from engine_core.executor.last_words import LastWords
from engine_core.ipc.codec import encode
from engine_core.ipc.transport import BoundRouter, connect_engine
from engine_core.ipc.worker_messages import LoadProgress, WorkerFailed

FAILED = WorkerFailed("worker_failed", "the device fell off the bus")
LINGER_MS = 10_000


class Link:
    """A router with its last words, and workers that connect, speak and are gone."""

    def __init__(self, context: zmq.Context, folder: str) -> None:
        self._context = context
        self.router = BoundRouter(context, f"ipc://{folder}/worker.sock")
        self.words = LastWords(lambda identity: int(identity))
        self.words.watch(self.router)

    def speak_and_end(self, rank: int, *frames: bytes) -> None:
        worker = connect_engine(self._context, self.router.address, b"%d" % rank)
        for frame in frames:
            worker.send(frame)
        worker.close(linger=LINGER_MS)


@pytest.fixture
def link() -> Iterator[Link]:
    with tempfile.TemporaryDirectory(prefix="lw-") as folder, zmq.Context() as context:
        link = Link(context, folder)
        yield link
        link.words.close()
        link.router.close()


def test_they_are_waited_for_until_the_connection_has_ended(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, late = link.words._wait, [1, 0]

    def speak_only_now(timeout_s: float) -> None:
        if late:
            link.speak_and_end(late.pop(), encode(FAILED))
        wait(timeout_s)

    monkeypatch.setattr(link.words, "_wait", speak_only_now)
    link.words.hear(2)
    assert link.words.of == {0: FAILED, 1: FAILED}


def test_what_came_before_them_is_passed_over(link: Link) -> None:
    link.speak_and_end(0, *[encode(LoadProgress(1, 2))] * 500, b"\xff", encode(FAILED))
    link.words.hear(1)
    assert link.words.of == {0: FAILED}


def test_nobody_waits_for_those_who_still_run(link: Link) -> None:
    def fail(timeout_s: float) -> None:
        raise AssertionError("it waited")

    link.words._wait = fail  # type: ignore[method-assign]
    link.words.hear(0)
    assert link.words.of == {}


def test_nobody_waits_before_anybody_could_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    words = LastWords(lambda identity: int(identity))
    words.watch(None)
    monkeypatch.setattr(words, "_wait", lambda timeout_s: pytest.fail("it waited"))
    words.hear(1)
    assert words.of == {}
