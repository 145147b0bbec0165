"""An engine that sleeps, lightly or deeply, wakes up and loses workers meanwhile; no processes."""

from __future__ import annotations

import pytest

from splitserve.engine_core.errors import EngineUnavailableError, WorkerError
from splitserve.engine_core.ipc.messages import Ready, Recovering, Rejected
from splitserve.engine_core.ipc.worker_messages import (
    AdapterLoaded,
    GrammarCompiled,
    KVCacheReady,
    MemoryReleased,
    ModelRunnerOutput,
)
from splitserve.engine_core.server.absence.rest import MAX_WAITING, Rest
from tests.engine_core.server.absence.test_recovery import LOSS, Losses
from tests.engine_core.server.test_frontend_handler import request


class Sleeper(Losses):
    """A bench whose engine can sleep; `asleep` counts who was told that the memory is free."""

    def __init__(self) -> None:
        super().__init__()
        self.rest = Rest(self.bench.handler.phase._startup, self.bench.handler, self.recovery)
        self.asleep = 0

    def sleep(self, *, keeps_weights: bool) -> None:
        def done() -> None:
            self.asleep += 1

        self.rest.sleep(self.engine, keeps_weights, done)

    def calls(self) -> tuple[int, int, int, int]:
        """How often workers were started, ended, told to free their KV cache, and to allocate one."""
        executor = self.executor
        return executor.started, executor.stopped_count, executor.released_count, len(executor.sizes)


@pytest.fixture
def sleeper() -> Sleeper:
    return Sleeper()


@pytest.mark.parametrize("keeps_weights", [True, False])
def test_an_engine_that_sleeps_keeps_its_requests_and_takes_no_others(
    sleeper: Sleeper, keeps_weights: bool
) -> None:
    sleeper.bench.say(b"a", request(1))
    sleeper.sleep(keeps_weights=keeps_weights)
    sleeper.sleep(keeps_weights=keeps_weights)
    assert sleeper.told()[-1] == Recovering("asleep", 0.0)
    assert sleeper.calls() == ((1, 0, 1, 1) if keeps_weights else (1, 1, 0, 1))
    rejected = sleeper.bench.say(b"a", request(2))
    assert isinstance(rejected, Rejected)
    assert (rejected.status, rejected.code, rejected.message) == (
        503,
        "engine_asleep",
        "the engine is asleep",
    )
    assert sleeper.asleep == 0
    sleeper.rest.on_message(MemoryReleased())
    assert sleeper.asleep == 2
    sleeper.sleep(keeps_weights=keeps_weights)
    assert sleeper.asleep == 3
    sleeper.rest.wake_up()
    sleeper.rest.wake_up()
    stage = (
        Recovering("allocating the KV cache", 1.0)
        if keeps_weights
        else Recovering("starting the worker", 0.0)
    )
    assert sleeper.told()[-1] == stage
    with pytest.raises(EngineUnavailableError, match=stage.stage):
        sleeper.sleep(keeps_weights=keeps_weights)
    if keeps_weights:
        sleeper.recovery.on_message(KVCacheReady(7))
    else:
        sleeper.come_back()
    assert sleeper.calls() == ((1, 0, 1, 2) if keeps_weights else (2, 1, 0, 2))
    # Of the ten blocks that were asked for the workers had made seven.
    assert sleeper.executor.sizes == [(10, 0), (7, 0)]
    assert isinstance(sleeper.told()[-1], Ready)
    assert sleeper.engine.num_requests == 1
    # It was no loss of workers.
    assert sleeper.engine.stats().num_worker_restarts == 0


def test_what_workers_still_say_of_steps_before_is_dropped_even_if_the_engine_wakes_up(
    sleeper: Sleeper,
) -> None:
    sleeper.sleep(keeps_weights=True)
    sleeper.rest.on_message(ModelRunnerOutput(1, b"", b""))
    sleeper.rest.wake_up()
    assert (sleeper.asleep, sleeper.rest.is_releasing) == (1, True)
    for message in (GrammarCompiled(1), AdapterLoaded(1)):
        sleeper.rest.on_message(message)
    with pytest.raises(WorkerError, match="sent KVCacheReady"):
        sleeper.rest.on_message(KVCacheReady(7))
    sleeper.rest.on_message(MemoryReleased())
    assert not sleeper.rest.is_releasing
    sleeper.recovery.on_message(KVCacheReady(7))
    assert not sleeper.recovery.is_active


def test_a_deeper_sleep_ends_the_workers_and_a_lighter_one_brings_none_back(sleeper: Sleeper) -> None:
    for keeps_weights in (True, False, True):
        sleeper.sleep(keeps_weights=keeps_weights)
        sleeper.rest.on_message(MemoryReleased())
    assert sleeper.calls() == (1, 1, 1, 1)
    assert sleeper.asleep == 3
    sleeper.rest.wake_up()
    sleeper.come_back()
    assert sleeper.calls() == (2, 1, 1, 2)


@pytest.mark.parametrize("is_free", [True, False])
def test_workers_that_are_lost_while_the_engine_sleeps_are_started_when_it_wakes_up(
    sleeper: Sleeper, is_free: bool
) -> None:
    sleeper.sleep(keeps_weights=True)
    if is_free:
        sleeper.rest.on_message(MemoryReleased())
    assert sleeper.rest.lose(LOSS)
    assert sleeper.calls() == (1, 1, 1, 1)
    sleeper.rest.on_message(MemoryReleased())
    assert sleeper.asleep == 1
    # Those that were ended and do not end are too many.
    with pytest.raises(WorkerError, match="killed by SIGKILL"):
        sleeper.rest.lose(LOSS)
    sleeper.rest.wake_up()
    assert not sleeper.rest.lose(LOSS)
    sleeper.come_back()
    assert isinstance(sleeper.told()[-1], Ready)


def test_a_worker_that_cannot_be_told_to_wake_up_is_replaced(
    sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(num_blocks: int, num_host_blocks: int = 0) -> None:
        raise LOSS

    sleeper.sleep(keeps_weights=True)
    monkeypatch.setattr(sleeper.executor, "init_kv_cache", refuse)
    sleeper.rest.wake_up()
    monkeypatch.undo()
    sleeper.come_back()
    assert sleeper.executor.started == 2
    assert isinstance(sleeper.told()[-1], Ready)


def test_only_so_many_wait_until_the_engine_sleeps(sleeper: Sleeper) -> None:
    for _ in range(MAX_WAITING):
        sleeper.sleep(keeps_weights=False)
    with pytest.raises(EngineUnavailableError, match="too many"):
        sleeper.sleep(keeps_weights=False)
    sleeper.rest.on_message(MemoryReleased())
    assert sleeper.asleep == MAX_WAITING
