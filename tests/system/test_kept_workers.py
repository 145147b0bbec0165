"""Workers outlive the engine that started them: real processes, the demo model, one engine after another."""

from __future__ import annotations

import os
import re
import signal
import sys
import time

import psutil
import pytest

from splitserve.engine_core.ipc.messages import Call, CallKind, CallResult, StepOutputs
from tests.engine_core.processes import wait_ended
from tests.engine_core.server.harness import RawClient
from tests.system.lives import DEADLINE_S, Lives, lives

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="workers are kept on Linux only"),
]
PROMPT = [5, 6, 7, 8] * 40


def load(client: RawClient) -> None:
    """Let eight requests run that do not end by themselves for a while."""
    for handle in range(100, 108):
        client.add(handle, [handle] * 30, max_tokens=1500)
    for _ in range(5):
        client.wait_for(StepOutputs)


def cached_tokens(log: str) -> list[int]:
    """Of every request that has ended."""
    return [int(found) for found in re.findall(r"request ended .* cached_tokens=(\d+)", log)]


def end_in_order(life: Lives) -> None:
    """SIGTERM; nothing of the server may be left."""
    workers = life.record()
    life.engine.terminate()
    assert life.engine.wait(DEADLINE_S) == 0, life.log()
    assert wait_ended(workers, DEADLINE_S) == []
    assert list(life.folder.glob("splitserve*")) == []


def test_a_successor_takes_over_worker_and_prefixes_under_load() -> None:
    with lives() as life:
        life.start()
        client = life.client()
        workers = life.record()
        expected = client.generate(1, PROMPT, max_tokens=40)
        for _ in range(2):
            load(client)
            life.kill()
            life.start()
            client = life.client()
            assert "workers taken over" in life.log()
            assert life.record() == workers
            assert client.generate(1, PROMPT, max_tokens=40) == expected
            assert cached_tokens(life.log()) == [len(PROMPT) - 16]
        end_in_order(life)


@pytest.mark.parametrize("flag", ["-tp=2", "-pp=2"])
def test_a_successor_takes_over_all_ranks(flag: str) -> None:
    with lives(flag) as life:
        life.start()
        client = life.client()
        workers = life.record()
        expected = client.generate(1, PROMPT, max_tokens=40)
        life.kill()
        life.start()
        client = life.client()
        assert life.record() == workers
        assert client.generate(1, PROMPT, max_tokens=40) == expected
        assert cached_tokens(life.log()) == [len(PROMPT) - 16]
        # Under load the step that was being sent may have reached one rank only: then new ones are started.
        load(client)
        life.kill()
        life.start()
        assert life.client().generate(1, PROMPT, max_tokens=40) == expected
        end_in_order(life)


def test_a_successor_may_have_other_settings_of_its_own() -> None:
    with lives() as life:
        life.start()
        life.client()
        workers = life.record()
        life.engine.send_signal(signal.SIGABRT)
        life.engine.wait(DEADLINE_S)
        life.start("--max-num-waiting=7")
        life.client()
        assert life.record() == workers
        end_in_order(life)


def test_other_settings_get_other_workers() -> None:
    with lives() as life:
        life.start()
        life.client()
        before = life.record()
        life.kill()
        life.start("--max-num-seqs=7")
        life.client()
        assert wait_ended(before, DEADLINE_S) == []
        assert set(life.record()).isdisjoint(before)
        end_in_order(life)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_ranks_of_which_one_is_gone_or_silent_are_replaced_together(number: signal.Signals) -> None:
    with lives("-tp=2") as life:
        life.start()
        expected = life.client().generate(1, PROMPT, max_tokens=10)
        before = life.record()
        life.kill()
        before[1].send_signal(number)
        life.start()
        assert life.client().generate(1, PROMPT, max_tokens=10) == expected
        assert wait_ended(before, DEADLINE_S) == []
        assert set(life.record()).isdisjoint(before)
        end_in_order(life)


def test_a_worker_for_which_nobody_comes_ends_and_leaves_nothing() -> None:
    with lives("--worker-wait=1") as life:
        life.start()
        life.client()
        workers = life.record()
        life.kill()
        assert wait_ended(workers, DEADLINE_S) == []
        assert list(life.folder.glob("splitserve*")) == []


def test_a_worker_of_an_engine_that_died_asleep_ends_and_leaves_nothing() -> None:
    with lives() as life:
        life.start()
        client = life.client()
        workers = life.record()
        client.send(Call(1, CallKind.SLEEP, keeps_weights=True))
        assert client.wait_for(CallResult).ok
        life.kill()
        # There is no KV cache to wait with.
        assert wait_ended(workers, DEADLINE_S) == []
        assert list(life.folder.glob("splitserve*")) == []


def test_workers_of_whom_no_record_is_left_disturb_no_others() -> None:
    with lives("--worker-wait=20") as life:
        life.start()
        life.client()
        before = life.record()
        (path,) = life.folder.glob("splitserve/workers-*/group.json")
        path.write_text("{")
        life.kill()
        life.start()
        assert len(life.client().generate(1, PROMPT, max_tokens=5)) == 5
        assert set(life.record()).isdisjoint(before)
        end_in_order(life)


def test_without_a_wait_a_worker_ends_with_its_engine() -> None:
    with lives("--worker-wait=0") as life:
        life.start()
        life.client()
        workers = psutil.Process(life.engine.pid).children()
        life.kill()
        assert wait_ended(workers, DEADLINE_S) == []
        assert list(life.folder.glob("splitserve*")) == []


def test_a_stopped_engine_keeps_its_workers_until_it_is_dead() -> None:
    with lives() as life:
        old = life.start()
        client = life.client()
        workers = life.record()
        expected = client.generate(1, PROMPT, max_tokens=40)
        old.send_signal(signal.SIGSTOP)
        # The address alone would refuse it.
        life.address = life.address.replace("/engine.sock", "/../run/engine.sock")
        refused = life.start()
        assert refused.wait(DEADLINE_S) == 2
        assert "another process already listens" in life.log()
        assert life.record() == workers
        old.kill()
        old.wait()
        life.start()
        assert life.client().generate(1, PROMPT, max_tokens=40) == expected
        assert life.record() == workers
        end_in_order(life)


def test_the_lock_refuses_an_engine_when_the_address_does_not() -> None:
    """As if the file of the old engine's socket had been removed."""
    with lives() as life:
        old = life.start()
        life.client()
        workers = life.record()
        old.send_signal(signal.SIGSTOP)
        os.unlink(life.address.removeprefix("ipc://"))
        refused = life.start()
        assert refused.wait(DEADLINE_S) == 2
        assert f"belong to another engine-core, process {old.pid};" in life.log()
        old.send_signal(signal.SIGCONT)
        assert all(worker.is_running() for worker in workers)


@pytest.mark.parametrize("point", ["engine.attaching"])
def test_a_successor_that_dies_while_it_starts_is_succeeded(point: str) -> None:
    with lives() as life:
        life.start()
        expected = life.client().generate(1, PROMPT, max_tokens=40)
        workers = life.record()
        life.kill()
        assert life.start(kill_point=point).wait(DEADLINE_S) == -signal.SIGKILL
        life.start()
        assert life.client().generate(1, PROMPT, max_tokens=40) == expected
        assert life.record() == workers
        assert cached_tokens(life.log()) == [len(PROMPT) - 16]
        end_in_order(life)


def test_an_engine_killed_while_its_worker_loads_leaves_no_worker() -> None:
    with lives() as life:
        engine = life.start()
        end_s = time.monotonic() + DEADLINE_S
        while not list(life.folder.glob("splitserve/workers-*/group.json")):
            assert time.monotonic() < end_s
        workers = life.record()
        engine.kill()
        assert wait_ended(workers, DEADLINE_S) == []
        life.start()
        life.client()
        end_in_order(life)
