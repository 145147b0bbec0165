"""How does a server under load come by each kill point, and what may that cost whom?"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import NamedTuple

from tests.system.nemesis.asks import Ask
from tests.system.nemesis.play import (
    NUM_TRIES,
    Fault,
    Run,
    assert_identical,
    assert_only_connections_broke,
    kill,
    play,
)
from tests.system.nemesis.stage import Stage, wait_for


class Way(NamedTuple):
    """What leads to a kill point while streams are open.

    Attributes:
        kind: whose process gets a signal; "" if load alone leads there.
        number: that signal.
        at_begin: the point is reached when a request begins, so the order has to be there before.
    """

    kind: str = ""
    number: signal.Signals = signal.SIGKILL
    at_begin: bool = False


LOAD = Way()
REQUESTS = Way(at_begin=True)
KILLED_ENGINE = Way("engine-core")
KILLED_WORKER = Way("worker")
KILLED_FRONTEND = Way("api-frontend")
HUNG_UP = Way("serve", signal.SIGHUP)
WAYS = {
    "engine.prepared": HUNG_UP,
    "engine.bound": KILLED_ENGINE,
    "engine.request_added": REQUESTS,
    "engine.step_planned": LOAD,
    "engine.step_submitted": LOAD,
    "engine.output_received": LOAD,
    "engine.output_applied": LOAD,
    "engine.outputs_sent": LOAD,
    "engine.attaching": KILLED_ENGINE,
    "engine.recovering": KILLED_WORKER,
    "engine.handing_over": HUNG_UP,
    "worker.hello_sent": KILLED_WORKER,
    "worker.loading": KILLED_WORKER,
    "worker.ready": KILLED_WORKER,
    "worker.step_received": LOAD,
    "worker.step_computed": LOAD,
    "worker.output_sent": LOAD,
    "worker.waiting_for_engine": KILLED_ENGINE,
    "worker.attached": KILLED_ENGINE,
    "frontend.started": KILLED_FRONTEND,
    "frontend.request_sent": REQUESTS,
    "frontend.outputs_received": LOAD,
    "frontend.resuming": KILLED_ENGINE,
    "frontend.resumed": KILLED_ENGINE,
}
AT_FRONTENDS = frozenset(name for name in WAYS if name.startswith("frontend."))
# How many requests begin before one is struck.
NUM_BEGUN = 4


def visit(stage: Stage, kill_point: str, asks: Sequence[Ask], after_events: int) -> Run:
    """Disturb streams at a kill point, once they have brought so many events.

    Raises:
        AssertionError: no process came by.
    """
    way = WAYS[kill_point]
    for _ in range(NUM_TRIES):
        stage.wait_ready()
        if way.at_begin:
            stage.order(f"{kill_point}:{NUM_BEGUN}")
            run = play(stage, asks)
        else:
            run = play(stage, asks, _order(stage, kill_point, way), after_events)
        if way is not LOAD or stage.struck():
            break
    wait_for(stage.struck, f"{kill_point} is reached")
    return run


def _order(stage: Stage, kill_point: str, way: Way) -> Fault:
    """Return the fault: the order, and then what leads to the place."""
    then = kill(*stage.pids(way.kind)[:1], number=way.number) if way.kind else None

    async def fault() -> None:
        stage.order(kill_point)
        if then is not None:
            await then()

    return fault


def assert_cost(stage: Stage, kill_point: str, run: Run, reference: Run) -> None:
    """Check that nobody lost anything, but the clients of a killed frontend their connections."""
    if kill_point in AT_FRONTENDS:
        assert_only_connections_broke(run, reference)
    else:
        assert_identical(run, reference, stage)
