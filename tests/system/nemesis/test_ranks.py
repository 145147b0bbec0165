"""One rank of several is killed or stands still: all ranks are replaced as a unit, and streams go on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.system.nemesis.asks import mixed_asks
from tests.system.nemesis.play import Fault, disturb, kill, play
from tests.system.nemesis.stage import Stage, serving, wait_for

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

ASKS = mixed_asks(16, 60)
AFTER_EVENTS = 100


@pytest.fixture(scope="module", params=[("--tensor-parallel-size", "2"), ("--pipeline-parallel-size", "2")])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with serving(*request.param) as running:
        yield running


def strike(stage: Stage, kind: str, number: int) -> Fault:
    return kill(stage.pids(kind)[number])


def test_each_rank_may_be_killed_and_the_engine_too(stage: Stage) -> None:
    reference = play(stage, ASKS)
    for kind, number in (("worker", 0), ("worker", 1), ("engine-core", 0)):
        disturb(stage, reference, AFTER_EVENTS, partial(strike, stage, kind, number))
        wait_for(lambda: len(stage.pids("worker")) == 2, "both ranks run again")
        stage.wait_ready()
