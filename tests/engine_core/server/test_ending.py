"""How an engine-core ends: drained, at once, or because it cannot start; and that nothing of it is left."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from splitserve.engine_core.ipc.curve import create_keys
from splitserve.engine_core.ipc.messages import (
    Draining,
    FinishReason,
    HandOver,
    Loading,
    Ready,
    Rejected,
    StepOutputs,
)
from tests.engine_core.server.harness import DEADLINE_S, ROOT, engine_with, running_engine


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_finish(number: signal.Signals) -> None:
    with engine_with("well") as engine:
        client = engine.joined()
        with engine.steps_held():
            client.add(1, [1, 2], max_tokens=200)
            client.stats_when(lambda stats: stats.num_running == 1)
            engine.signal(number)
            assert client.wait_for(Draining).timeout_s == 30
            client.add(2, [3], max_tokens=1)
            rejected = client.wait_for(Rejected)
            assert (rejected.handle, rejected.status, rejected.code) == (2, 503, "engine_unavailable")
            assert client.ping().draining
        sequence = client.finish(1)
        assert len(sequence.token_ids) == 200
        assert sequence.finished is not None
        assert sequence.finished.reason is FinishReason.LENGTH
        assert engine.exit_code() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_idle_engine_ends_at_once(number: signal.Signals) -> None:
    with running_engine() as engine:
        engine.joined()
        engine.signal(number)
        assert engine.exit_code() == 0


def test_an_address_that_cannot_be_bound_is_told_and_ends_the_process(tmp_path: Path) -> None:
    create_keys(str(tmp_path / "keys"))
    words = ["--executor", "simulated", "--listen", "tcp://192.0.2.1:5555", "--keys", str(tmp_path / "keys")]
    done = subprocess.run(
        [sys.executable, "-m", "splitserve.engine_core.cli", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 2
    assert "engine-core: error: cannot listen on tcp://192.0.2.1:5555" in done.stderr
    assert "Traceback" not in done.stderr


def test_requests_beyond_the_drain_time_are_handed_over() -> None:
    with running_engine("--simulated-step-ms", "20", "--drain-timeout", "0.2") as engine:
        client = engine.joined()
        client.add(1, [1], max_tokens=4000)
        client.wait_for(StepOutputs)
        engine.signal(signal.SIGTERM)
        assert client.wait_for(HandOver).reason == "the engine is shutting down"
        assert client.sequences[1].finished is None
        assert engine.exit_code() == 0


def test_an_engine_that_is_replaced_gives_all_requests_back_with_their_tokens() -> None:
    with running_engine("--simulated-step-ms", "5") as engine, running_engine() as other:
        clients = [engine.joined() for _ in range(3)]
        for client in clients:
            client.add(1, [1, 2], max_tokens=4000)
            while not client.sequences[1].token_ids:
                client.wait_for(StepOutputs)
        engine.signal(signal.SIGUSR1)
        whole = other.joined().generate(1, [1, 2], max_tokens=4000)
        for client in clients:
            assert client.wait_for(HandOver).reason == "the engine is being replaced"
            assert client.sequences[1].finished is None
            tokens = client.sequences[1].token_ids
            assert tokens
            assert tokens == whole[: len(tokens)]
        assert engine.exit_code() == 0
        assert "outcome=error" not in engine.log()


def test_an_engine_that_is_not_ready_ends_when_it_is_replaced() -> None:
    with engine_with("load for ever") as engine:
        client = engine.client()
        client.hello()
        client.wait_for(Loading)
        engine.signal(signal.SIGUSR1)
        assert engine.exit_code() == 0


def test_a_second_signal_ends_at_once() -> None:
    with running_engine("--simulated-step-ms", "20") as engine:
        client = engine.joined()
        client.add(1, [1], max_tokens=4000)
        client.wait_for(StepOutputs)
        engine.signal(signal.SIGTERM)
        client.wait_for(Draining)
        engine.signal(signal.SIGTERM)
        assert engine.exit_code() == 128 + signal.SIGTERM


def test_a_frontend_that_joins_a_draining_engine_is_told() -> None:
    with engine_with("well") as engine:
        client = engine.joined()
        with engine.steps_held():
            client.add(1, [1], max_tokens=3)
            client.stats_when(lambda stats: stats.num_running == 1)
            engine.signal(signal.SIGTERM)
            client.wait_for(Draining)
            late = engine.client()
            late.hello()
            late.wait_for(Ready)
            assert late.wait_for(Draining).timeout_s <= 30
        client.finish(1)


def test_a_restarted_engine_has_another_epoch_and_takes_a_stale_socket_file() -> None:
    with running_engine() as first:
        epoch = first.joined().join().epoch
        first.popen.kill()
        first.popen.wait(DEADLINE_S)
        assert Path(first.address.removeprefix("ipc://")).exists()
        with subprocess.Popen(first.popen.args, cwd=ROOT, stderr=subprocess.DEVNULL) as second:
            client = first.client()
            assert client.join().epoch != epoch
            second.terminate()
            assert second.wait(DEADLINE_S) == 0


def test_a_second_engine_does_not_take_the_address_of_a_running_one() -> None:
    with running_engine() as engine:
        client = engine.joined()
        done = subprocess.run(engine.popen.args, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 2
        assert "another process already listens on" in done.stderr
        assert len(client.generate(1, [1], max_tokens=3)) == 3


def test_an_idle_engine_uses_no_cpu() -> None:
    with running_engine("--lease", "60") as engine:
        client = engine.joined()
        client.generate(1, [1], max_tokens=3)
        process = psutil.Process(engine.popen.pid)
        ready, unread = socket.socketpair()
        with ready, unread:
            ready.settimeout(1.5)
            before = process.num_ctx_switches().voluntary
            with pytest.raises(TimeoutError):
                ready.recv(1)
            # One integrity check after work; a loop that polls by the clock would wake up hundreds of times.
            assert process.num_ctx_switches().voluntary - before < 20
