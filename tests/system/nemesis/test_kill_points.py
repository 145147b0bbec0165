"""Named places in the life of a process: killed there, under load, no other process loses a stream."""

from __future__ import annotations

import pytest

from splitserve.engine_core.process.kill_points import KILL_POINTS
from tests.system.nemesis.asks import mixed_asks
from tests.system.nemesis.kill_ways import WAYS, assert_cost, visit
from tests.system.nemesis.play import play
from tests.system.nemesis.stage import serving

ASKS = mixed_asks(16, 60)
# A tenth of what they bring: few, since one event may bring many tokens.
AFTER_EVENTS = 100
# Some of each process; `python -m benchmarks.failover kill-points` visits all. Each server visits few: what
# that is killed six times within a minute is not started again.
VISITS = (
    ("engine.step_submitted", "engine.attaching", "worker.step_computed", "frontend.resuming"),
    ("engine.recovering", "worker.ready", "worker.waiting_for_engine", "frontend.started"),
    ("engine.request_added", "engine.handing_over", "worker.attached", "frontend.outputs_received"),
)


def test_there_is_a_way_to_every_kill_point() -> None:
    assert WAYS.keys() == KILL_POINTS


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kill_points", VISITS)
def test_a_process_killed_there_costs_no_stream_of_another(kill_points: tuple[str, ...]) -> None:
    with serving(num_frontends=2) as stage:
        reference = play(stage, ASKS)
        for kill_point in kill_points:
            run = visit(stage, kill_point, ASKS, AFTER_EVENTS)
            assert_cost(stage, kill_point, run, reference)
