"""When what the clock asks for is due."""

from __future__ import annotations

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.process.heartbeats import Heart, HeartbeatPage
from splitserve.engine_core.scheduler.output import GATHER_S, NEVER
from splitserve.engine_core.server.upkeep import PROBE_DELAYS_S, SILENCE_INTERVAL_S, Upkeep
from tests.engine_core.server.test_frontend_handler import Bench

SOON_S, LATE_S = PROBE_DELAYS_S


class Probes:
    """An upkeep whose probes are counted."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.clock: ManualClock = self.bench.clock
        self.upkeep = Upkeep(self.clock, self.bench.handler, self.bench.table)
        self.times_s: list[float] = []
        self.bench.handler.probe = self._note  # type: ignore[method-assign]

    def _note(self) -> None:
        self.times_s.append(round(self.clock.monotonic() - 100.0, 3))

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds * 1000)):
            self.clock.advance(0.001)
            self.upkeep.run(None)


class SlowEngine:
    """An idle engine whose integrity check takes a stated time."""

    has_requests = False

    def __init__(self, clock: ManualClock, took_s: float) -> None:
        self._clock = clock
        self._took_s = took_s
        self.checked_at_s: list[float] = []

    def expire(self) -> None:
        pass

    def check_integrity(self) -> None:
        self.checked_at_s.append(self._clock.monotonic())
        self._clock.advance(self._took_s)


def test_a_slow_integrity_check_is_a_rare_one() -> None:
    probes = Probes()
    engine = SlowEngine(probes.clock, took_s=0.2)
    for _ in range(400):
        probes.upkeep.on_work()
        for _ in range(2):
            probes.clock.advance(1.0)
            probes.upkeep.run(engine)  # type: ignore[arg-type]
    first_s, *later_s = engine.checked_at_s
    assert later_s
    assert later_s[0] - first_s >= 200


def test_a_connection_that_ended_is_looked_for_twice() -> None:
    probes = Probes()
    probes.upkeep.on_disconnect()
    probes.pass_time(2.0)
    assert probes.times_s == [SOON_S, LATE_S]


def test_a_connection_that_ends_just_before_the_last_probe_gets_its_own() -> None:
    probes = Probes()
    probes.upkeep.on_disconnect()
    probes.pass_time(LATE_S - 0.001)
    probes.upkeep.on_disconnect()
    probes.pass_time(2.0)
    assert probes.times_s[-1] == round(2 * LATE_S - 0.001, 3)


def test_connections_that_keep_ending_do_not_put_a_probe_off() -> None:
    probes = Probes()
    for _ in range(1000):
        probes.upkeep.on_disconnect()
        probes.pass_time(0.001)
    assert len(probes.times_s) >= 1.0 / SOON_S - 5


class GatheringEngine:
    """An engine with requests, and tokens for them that leave at a stated time."""

    has_requests = True
    outputs_due_s = NEVER

    def expire(self) -> None:
        pass


def test_gathered_tokens_are_due_before_the_next_look_at_timeouts() -> None:
    probes = Probes()
    engine = GatheringEngine()
    probes.upkeep.run(engine)  # type: ignore[arg-type]
    now_s = probes.clock.monotonic()
    assert probes.upkeep.next_due_s(engine) > now_s + GATHER_S  # type: ignore[arg-type]
    engine.outputs_due_s = now_s + GATHER_S
    assert probes.upkeep.next_due_s(engine) == now_s + GATHER_S  # type: ignore[arg-type]


class BusyEngine:
    """An engine whose steps take a stated time."""

    has_requests = True

    def __init__(self, median_s: float) -> None:
        self.step_times = self
        self.seconds = median_s

    def expire(self) -> None:
        pass

    def median_s(self) -> float:
        return self.seconds


def test_the_loop_may_stand_still_for_two_seconds_or_twenty_steps() -> None:
    bench, page = Bench(), HeartbeatPage.create(1)
    heart = Heart(7.0, page)
    upkeep = Upkeep(bench.clock, bench.handler, bench.table, heart)
    limits: list[float] = []
    for median_s in (0.02, 0.3, 0.0):
        bench.clock.advance(SILENCE_INTERVAL_S)
        upkeep.run(BusyEngine(median_s))  # type: ignore[arg-type]
        heart.beat()
        limits.append(page.limit_s(0))
    assert limits == [2.0, 6.0, 2.0]


def test_the_integrity_check_is_announced_as_a_long_phase() -> None:
    bench, page = Bench(), HeartbeatPage.create(1)
    upkeep = Upkeep(bench.clock, bench.handler, bench.table, Heart(2.0, page))
    upkeep.on_work()
    bench.clock.advance(1.0)
    upkeep.run(SlowEngine(bench.clock, took_s=5.0))  # type: ignore[arg-type]
    assert page.limit_s(0) == 30.0
