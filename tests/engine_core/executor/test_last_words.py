"""What a worker says before it ends is heard, however late libzmq reads it and whatever came before."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest
import zmq

from splitserve.engine_core.executor import last_words
from splitserve.engine_core.executor.last_words import LastWords
from splitserve.engine_core.ipc.codec import encode
from splitserve.engine_core.ipc.transport import BoundRouter, SendResult, connect_engine
from splitserve.engine_core.ipc.worker_messages import LoadProgress, WorkerFailed

FAILED = WorkerFailed("worker_failed", "the device fell off the bus")
LINGER_MS = 10_000


class Link:
    """A router with its last words, and workers that connect, speak and are gone."""

    def __init__(self, context: zmq.Context, folder: str) -> None:
        self._context = context
        self.router = BoundRouter(context, f"ipc://{folder}/worker.sock")
        self.words = LastWords(lambda identity: int(identity))

    def speak_and_end(self, rank: int, *frames: bytes) -> None:
        worker = connect_engine(self._context, self.router.address, b"%d" % rank)
        for frame in frames:
            worker.send(frame)
        worker.close(linger=LINGER_MS)

    def hear(self, *ended: int) -> dict[int, WorkerFailed]:
        self.words.hear(self.router, ended)
        return self.words.of


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    # The machine may be as slow as it likes.
    for patience in ("_READ_TO_THE_END_S", "_FIRST_WORD_S"):
        monkeypatch.setattr(last_words, patience, 60.0)
    with tempfile.TemporaryDirectory(prefix="lw-") as folder, zmq.Context() as context:
        link = Link(context, folder)
        yield link
        link.router.close()


def test_they_are_waited_for_however_late_the_connection_is_read(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, late = link.words._wait, [1, 0]

    def speak_only_now(router: BoundRouter, timeout_s: float) -> None:
        if late:
            link.speak_and_end(late.pop(), encode(FAILED))
        wait(router, timeout_s)

    monkeypatch.setattr(link.words, "_wait", speak_only_now)
    assert link.hear(0, 1) == {0: FAILED, 1: FAILED}


def test_what_came_before_them_is_passed_over(link: Link) -> None:
    link.speak_and_end(0, *[encode(LoadProgress(1, 2))] * 500, b"\xff", encode(FAILED))
    assert link.hear(0) == {0: FAILED}


def test_they_are_heard_behind_more_than_the_kernel_holds(link: Link) -> None:
    link.speak_and_end(0, *[b"\xff" * 2**14] * 900, encode(FAILED))
    assert link.hear(0) == {0: FAILED}


def test_a_rank_that_ends_without_them_is_heard_to_its_end(link: Link) -> None:
    link.speak_and_end(0, *[encode(LoadProgress(1, 2))] * 500)
    assert link.hear(0) == {}
    assert list(link.router.receive()) == []
    assert link.router.send(b"0", b"anybody?") is SendResult.GONE


def test_the_wait_for_a_rank_that_never_spoke_is_bounded(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_words, "_FIRST_WORD_S", 0.05)
    assert link.hear(0) == {}


def test_nobody_waits_for_those_who_still_run(link: Link) -> None:
    def fail(router: BoundRouter, timeout_s: float) -> None:
        raise AssertionError("it waited")

    link.words._wait = fail  # type: ignore[method-assign]
    assert link.hear() == {}


def test_nobody_waits_before_anybody_could_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    words = LastWords(lambda identity: int(identity))
    monkeypatch.setattr(words, "_wait", lambda router, timeout_s: pytest.fail("it waited"))
    words.hear(None, [1])
    assert words.of == {}
