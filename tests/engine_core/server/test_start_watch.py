"""Workers that start may take as long as they like while something comes of it."""

from __future__ import annotations

import msgspec
import pytest

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.ipc.worker_messages import FromWorkerMessage, KVCacheReady, LoadProgress
from splitserve.engine_core.process.progress import StartupReport
from splitserve.engine_core.server.start_watch import LOOK_S, PAUSE_S, StartWatch
from splitserve.engine_core.server.startup import Startup
from splitserve.engine_core.server.worker_side import WorkerSide
from tests.engine_core.server.harness import engine_with
from tests.engine_core.server.test_frontend_handler import Bench as FrontendBench
from tests.engine_core.server.test_start import HELLO, RecordingExecutor, begun, ready

LIMIT_S = 10.0


class Bench:
    """A watch whose clock passes in rounds of the loop."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.watch = StartWatch(LIMIT_S, self.clock)

    def pass_(self, seconds: float) -> None:
        for _ in range(round(seconds / LOOK_S)):
            self.clock.advance(LOOK_S)
            self.watch.look("loading weights")


def test_silence_ends_a_start() -> None:
    bench = Bench()
    bench.pass_(LIMIT_S - LOOK_S)
    with pytest.raises(WorkerError, match="no progress for 10 s while loading weights"):
        bench.pass_(LOOK_S)


def test_a_start_that_gets_on_is_never_too_long() -> None:
    bench = Bench()
    for _ in range(100):
        bench.pass_(LIMIT_S - LOOK_S)
        bench.watch.heard()
    with pytest.raises(WorkerError):
        bench.pass_(LIMIT_S)


def test_a_pause_of_the_engine_counts_little() -> None:
    bench = Bench()
    bench.clock.advance(1000.0)
    bench.watch.look("loading weights")
    bench.pass_(LIMIT_S - PAUSE_S - LOOK_S)
    with pytest.raises(WorkerError):
        bench.pass_(LOOK_S)


def test_room_on_a_cluster_may_take_longer() -> None:
    config = EngineConfig(model="m", executor="ray", load_timeout_s=100.0, ray_timeout_s=30.0)
    assert begun(config)[0].longest_silence_s == 130.0
    assert begun(EngineConfig(model="m", load_timeout_s=100.0))[0].longest_silence_s == 100.0


class Scripted(RecordingExecutor):
    """Workers that say what they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.says: list[FromWorkerMessage | WorkerError] = []

    def poll_timeout_s(self) -> float | None:
        return 0.0

    def receive(self) -> list[FromWorkerMessage]:
        said, self.says = self.says, []
        for each in said:
            if isinstance(each, WorkerError):
                raise each
        return [each for each in said if not isinstance(each, WorkerError)]


class Starting:
    """The workers' side of an engine, from the start of the first ones on."""

    def __init__(self) -> None:
        bench = FrontendBench()
        self.clock = bench.clock
        self.executor = Scripted()
        config = msgspec.structs.replace(bench.config, load_timeout_s=LIMIT_S)
        startup = Startup(config, self.executor, StartupReport(self.clock))
        startup.begin()
        self.side = WorkerSide(
            self.executor, startup, bench.handler, self.clock, lambda loaded: bench.engine, lambda: None
        )

    def say(self, *messages: FromWorkerMessage | WorkerError) -> None:
        self.executor.says += messages
        self.side.attend({})

    def be_silent(self, seconds: float) -> None:
        for _ in range(round(seconds / LOOK_S)):
            self.clock.advance(LOOK_S)
            self.side.attend({})


def test_the_first_workers_that_hang_while_they_start_end_the_engine() -> None:
    starting = Starting()
    for message in (HELLO, LoadProgress(1, 4), LoadProgress(2, 4)):
        starting.be_silent(LIMIT_S - LOOK_S)
        starting.say(message)
    with pytest.raises(WorkerError, match="no progress for 10 s while loading weights"):
        starting.be_silent(LIMIT_S)


def test_later_workers_that_hang_while_they_start_are_started_once_more() -> None:
    starting = Starting()
    starting.say(HELLO, ready(), KVCacheReady(7))
    starting.be_silent(2 * LIMIT_S)
    assert starting.executor.started == 1, "there is nothing to do"
    starting.say(WorkerError("the worker was lost"))
    starting.be_silent(LIMIT_S - LOOK_S)
    starting.say(HELLO)
    assert starting.executor.started == 2
    starting.be_silent(LIMIT_S)
    assert starting.executor.started == 3
    starting.be_silent(LIMIT_S - LOOK_S)
    starting.say(HELLO, ready(), KVCacheReady(7))
    assert not starting.side.is_recovering


def test_an_engine_whose_worker_hangs_while_it_loads_ends() -> None:
    with engine_with("load for ever", "--load-timeout", "1") as engine:
        assert engine.exit_code() == 4
        assert "engine-core: error: workers made no progress for 1 s while " in engine.log()
