"""The spare engine: when one is started, and when again after it was lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from splitserve.engine_core.launcher.spare import (
    FIRST_RETRY_S,
    MAX_RETRY_S,
    PREPARE_TIMEOUT_S,
    START_DELAY_S,
    SpareEngine,
)


class FakeChild:
    """A process that ends when it is told to."""

    def __init__(self, line: int) -> None:
        self.line = os.dup(line)
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def wait(self, timeout_s: float) -> int | None:
        return self.code

    def signal(self, number: signal.Signals) -> None:
        self.code = -number

    def close(self) -> None:
        pass

    def prepare(self) -> None:
        os.write(self.line, b"p")

    def end(self, code: int) -> None:
        self.code = code
        os.close(self.line)


class Rig:
    """A spare engine, and the processes that it has started."""

    def __init__(self) -> None:
        self.started: list[FakeChild] = []
        self.refusal: OSError | None = None
        self.spare = SpareEngine(self._start)  # type: ignore[arg-type]
        self.now_s = 100.0

    def _start(self, line: int) -> FakeChild:
        if self.refusal is not None:
            raise self.refusal
        self.started.append(FakeChild(line))
        return self.started[-1]

    def run(self, after_s: float = 0.0) -> str | None:
        """Let time pass; returns why a spare failed, "" if it is prepared, None for no news."""
        self.now_s += after_s
        prepared = self.spare.run(self.now_s)
        return None if prepared is None else prepared.failure

    def serve(self) -> None:
        self.spare.on_engine_serves(self.now_s)


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.spare.end()


def test_a_spare_is_started_a_little_after_the_engine_serves(rig: Rig) -> None:
    rig.serve()
    rig.run(START_DELAY_S - 0.1)
    assert not rig.started
    rig.run(0.1)
    rig.started[0].prepare()
    assert rig.run() == ""
    assert rig.spare.is_prepared
    assert rig.spare.next_due_s() == float("inf")


def test_one_that_ends_is_started_again_later_and_later_until_one_is_prepared(rig: Rig) -> None:
    rig.serve()
    rig.run(START_DELAY_S)
    delays = []
    for _ in range(9):
        rig.started[-1].end(1)
        assert rig.run() == "the successor of engine-core ended before it served (exit code 1)"
        assert not rig.spare.is_prepared
        delays.append(rig.spare.next_due_s() - rig.now_s)
        rig.run(delays[-1])
    assert delays == [min(FIRST_RETRY_S * 2**i, MAX_RETRY_S) for i in range(9)]
    rig.started[-1].prepare()
    rig.run()
    rig.started[-1].end(1)
    rig.run()
    assert rig.spare.next_due_s() == rig.now_s + FIRST_RETRY_S


def test_one_that_cannot_be_started_or_hangs_is_tried_again(rig: Rig) -> None:
    rig.refusal = OSError(12, "Cannot allocate memory")
    rig.serve()
    assert rig.run(START_DELAY_S) == "the successor of engine-core cannot be started: Cannot allocate memory"
    rig.refusal = None
    assert rig.run(FIRST_RETRY_S) is None
    assert rig.run(PREPARE_TIMEOUT_S) == "the successor of engine-core was not prepared after 300 s"
    assert rig.started[0].code == -signal.SIGKILL
    rig.run(2 * FIRST_RETRY_S)
    assert len(rig.started) == 2


def test_none_is_started_while_the_engine_is_not_there(rig: Rig) -> None:
    rig.serve()
    rig.run(START_DELAY_S)
    rig.started[0].end(1)
    rig.run()
    assert rig.spare.take() is None
    rig.run(MAX_RETRY_S)
    assert len(rig.started) == 1
    rig.serve()
    rig.run(START_DELAY_S)
    assert len(rig.started) == 2
