"""Which faults, on which servers, under which load?"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from tests.system.nemesis.asks import Ask, greedy_asks, mixed_asks
from tests.system.nemesis.play import Fault, kill, stop_for
from tests.system.nemesis.stage import Stage, serving, standing

STOP_S = 30.0
MANY = 10_000
PREFIX_TOKENS = 1500
NUM_TOKENS = 200


class Flags(NamedTuple):
    """What the command line says of the server: model directory ("" for the demo model) and other flags."""

    model: str = ""
    words: Sequence[str] = ()


Start = Callable[[Flags], AbstractContextManager[Stage]]


class Scenario(NamedTuple):
    """One row.

    Attributes:
        what: the fault, in words.
        start: makes the server.
        fault: for a server and the number of the run.
        asks: for a number of streams.
        after: begin the fault when this share of the undisturbed run's events has come.
        repair: makes the server whole again where it does not do so itself.
        cuts_connections: clients of the struck process lose their connections; the others count.
    """

    what: str
    start: Start
    fault: Callable[[Stage, int], Fault]
    asks: Callable[[int], Sequence[Ask]] = lambda count: mixed_asks(count, NUM_TOKENS)
    after: float = 0.3
    repair: Callable[[Stage, int], None] = lambda _stage, _turn: None
    cuts_connections: bool = False


def strike(kind: str, number: signal.Signals = signal.SIGKILL) -> Callable[[Stage, int], Fault]:
    """Return the fault that the process of a kind gets a signal; of several, each in its turn."""

    def fault(stage: Stage, turn: int) -> Fault:
        # Of two engine-cores of one server, the younger one is the spare.
        pids = stage.pids(kind)[: 1 if kind == "engine-core" else None]
        return kill(pids[turn % len(pids)], number=number)

    return fault


def stand_still(kind: str) -> Callable[[Stage, int], Fault]:
    """Return the fault that the process of a kind is stopped, and goes on later."""
    return lambda stage, _: stop_for(STOP_S, stage.pids(kind)[0])


def serve(*flags: str, num_frontends: int = 1) -> Start:
    """Return what starts `splitserve serve`."""
    return lambda more: serving(
        *([more.model] if more.model else []), *flags, *more.words, num_frontends=num_frontends
    )


def _many_asks(count: int) -> list[Ask]:
    return greedy_asks(count, 60)


def _prefix_asks(count: int) -> list[Ask]:
    return greedy_asks(count, 100, [10 + i % 1900 for i in range(PREFIX_TOKENS)])


def _strike_first_engine(number: signal.Signals) -> Callable[[Stage, int], Fault]:
    return lambda stage, _: kill(stage.engine(0).pid, number=number)


def _start_first_engine(stage: Stage, turn: int) -> None:
    stage.engine(0).popen.wait()
    stage.wait_ready()


def two_engines(*flags: str) -> Start:
    """Return what starts two engines with two frontends over both."""
    return lambda more: standing(2, 2, *(["--model", more.model] if more.model else []), *flags, *more.words)


# All streams are computed again in two or three steps, the largest that there are: the simulated model's
# tokens cost nothing, its steps 2 s each.
MANY_FLAGS = (
    *("--executor", "simulated", "--simulated-step-ms", "2000", "--max-num-seqs", str(MANY)),
    *("--max-num-waiting", str(MANY), "--max-num-batched-tokens", str(26 * MANY), "--target-itl-ms", "0"),
    *("--num-blocks", str(MANY * 12), "--log-level", "warning", "--log-wait", "0"),
    *("--max-open-requests", str(MANY), "--max-connections", str(2 * MANY)),
)
SCENARIOS = {
    "kill-engine": Scenario("kill -9 of engine-core", serve(), strike("engine-core")),
    "kill-worker": Scenario("kill -9 of the worker", serve(), strike("worker")),
    "kill-rank-tp": Scenario("kill -9 of a rank, TP=2, each in turn", serve("-tp", "2"), strike("worker")),
    "kill-rank-pp": Scenario("kill -9 of a rank, PP=2, each in turn", serve("-pp", "2"), strike("worker")),
    "stop-engine": Scenario("SIGSTOP of engine-core for 30 s", serve(), stand_still("engine-core")),
    "stop-worker": Scenario("SIGSTOP of the worker for 30 s", serve(), stand_still("worker")),
    "kill-frontend": Scenario(
        "kill -9 of one of 2 frontends",
        serve(num_frontends=2),
        strike("api-frontend"),
        cuts_connections=True,
    ),
    "one-of-two": Scenario(
        "kill -9 of one of two engines, 2 frontends",
        two_engines(),
        _strike_first_engine(signal.SIGKILL),
        repair=_start_first_engine,
    ),
    "drain-one-of-two": Scenario(
        "SIGTERM of one of two engines, 2 frontends",
        two_engines("--drain-timeout", "1"),
        _strike_first_engine(signal.SIGTERM),
        repair=_start_first_engine,
    ),
    "rolling": Scenario(
        "SIGHUP: all replaced in turn", serve(num_frontends=2), strike("serve", signal.SIGHUP)
    ),
    "shared-prefix": Scenario(
        "kill -9 of engine-core under a shared prefix", serve(), strike("engine-core"), _prefix_asks
    ),
    "many-streams": Scenario(
        "kill -9 of engine-core under 10,000 streams, simulated executor",
        serve(*MANY_FLAGS, num_frontends=4),
        strike("engine-core"),
        lambda _: _many_asks(MANY),
        # By then the last of them have begun, and the first have not ended.
        after=0.4,
    ),
}
