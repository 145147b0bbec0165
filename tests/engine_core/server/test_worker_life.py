"""An engine-core and its worker process: loading, loss and end, as a frontend and an operator see them."""

from __future__ import annotations

import signal

import pytest

from splitserve.engine_core.ipc.messages import Draining, Loading, Ready, Rejected, StepOutputs
from tests.engine_core.processes import wait_ended
from tests.engine_core.server.harness import DEADLINE_S, engine_with, running_engine


def test_requests_run_on_a_worker_process() -> None:
    with engine_with("well") as engine, running_engine() as simulated:
        tokens = engine.joined().generate(1, [1, 2, 3], max_tokens=50)
        assert tokens == simulated.joined().generate(1, [1, 2, 3], max_tokens=50)


def test_a_frontend_is_told_how_far_loading_is() -> None:
    with engine_with("load for ever") as engine:
        client = engine.client()
        client.hello()
        loading = client.wait_for(Loading, lambda message: message.fraction > 0)
        assert (loading.stage, loading.fraction) == ("loading weights", 0.25)
        client.add(1, [1])
        rejected = client.wait_for(Rejected)
        assert (rejected.status, rejected.code) == (503, "engine_unavailable")
        assert "loading weights" in rejected.message
        assert client.ping().stats.num_frontends == 1
        worker = engine.worker()
        engine.signal(signal.SIGTERM)
        assert engine.exit_code() == 0
        assert not worker.is_running()


def test_frontends_that_waited_hear_ready() -> None:
    with engine_with("well") as engine:
        clients = [engine.client() for _ in range(3)]
        for client in clients:
            client.hello()
        assert len({client.wait_for(Ready).epoch for client in clients}) == 1


@pytest.mark.parametrize(
    ("behaviour", "code", "text"),
    [
        ("refuse the model", 3, "engine-core: error: shard 2 of 3 is missing"),
        ("refuse the flags", 2, "engine-core: error: --max-model-len is too long"),
        ("end while loading", 4, "cannot map the weights"),
        ("garbage", 4, "invalid message"),
    ],
)
def test_a_start_that_fails_ends_with_a_code_of_its_own(behaviour: str, code: int, text: str) -> None:
    with engine_with(behaviour) as engine:
        assert engine.exit_code() == code
        assert text in engine.log()
        assert "Traceback" not in engine.log()


def test_a_pool_that_holds_nothing_is_a_configuration_error() -> None:
    with engine_with("well", "--kv-cache-memory-bytes", "9") as engine:
        assert engine.exit_code() == 2
        assert "one block of 16 tokens needs 10" in engine.log()


def test_a_context_beyond_the_model_is_a_configuration_error() -> None:
    with engine_with("well", "--max-model-len", "99999") as engine:
        assert engine.exit_code() == 2
        assert "--max-model-len 99999" in engine.log()
        assert "4096" in engine.log()


def test_the_worker_dies_with_an_engine_that_is_killed() -> None:
    with engine_with("well") as engine:
        engine.joined()
        worker = engine.worker()
        engine.popen.kill()
        engine.popen.wait(DEADLINE_S)
        assert wait_ended([worker], DEADLINE_S) == []


def test_a_stubborn_worker_does_not_keep_a_second_signal_waiting() -> None:
    with engine_with("stubborn") as engine:
        client = engine.joined()
        client.add(1, [1], max_tokens=4000)
        client.wait_for(StepOutputs)
        worker = engine.worker()
        engine.signal(signal.SIGTERM)
        client.wait_for(Draining)
        engine.signal(signal.SIGTERM)
        assert engine.exit_code() == 128 + signal.SIGTERM
        assert not worker.is_running()
