"""Two engines under two frontends: whatever happens to one, the streams of both go on with the other."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.system.nemesis.asks import mixed_asks
from tests.system.nemesis.play import Run, assert_identical, disturb, kill, play, stop_for
from tests.system.nemesis.stage import Stage, standing

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

ASKS = mixed_asks(32, 100)
AFTER_EVENTS = 250


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with standing(2, 2, "--drain-timeout", "0") as running:
        yield running


@pytest.fixture(scope="module")
def reference(stage: Stage) -> Run:
    run = play(stage, ASKS)
    assert all(history.is_whole for history in run.histories)
    return run


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
def test_the_streams_of_an_engine_that_ends_go_on_with_the_other(
    stage: Stage, reference: Run, number: signal.Signals
) -> None:
    """Killed, drained without time for it, or told to hand over."""
    disturb(stage, reference, AFTER_EVENTS, lambda: kill(stage.engine(0).pid, number=number))
    stage.engine(0).popen.wait(60)
    stage.wait_ready()


def test_an_engine_that_stood_still_is_not_heard_with_what_it_had_to_say(
    stage: Stage, reference: Run
) -> None:
    engine = stage.engine(0)
    disturb(stage, reference, AFTER_EVENTS, lambda: stop_for(8.0, engine.pid))
    assert engine.popen.poll() is None, "nobody restarts an engine that was started by hand"
    stage.wait_ready()
    assert_identical(play(stage, ASKS), reference, stage)
