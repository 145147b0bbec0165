"""Workers die, stop or talk nonsense under streams: no request ends of it, and no token is another one."""

from __future__ import annotations

import re

import pytest

from splitserve.engine_core.ipc.messages import Abort, FinishReason, Ready, Recovering, StepOutputs
from tests.engine_core.executor.fake_worker import POISON
from tests.engine_core.processes import wait_ended
from tests.engine_core.server.harness import DEADLINE_S, Engine, RawClient, engine_with, running_engine

NUM_TOKENS = 400
PROMPTS = {handle: [handle, 2, 3] for handle in range(1, 6)}


@pytest.fixture(scope="module")
def undisturbed() -> dict[int, list[int]]:
    """The tokens of every prompt by handle, from an engine to which nothing happens."""
    with running_engine() as engine:
        client = engine.joined()
        return {handle: client.generate(handle, PROMPTS[handle], max_tokens=NUM_TOKENS) for handle in PROMPTS}


def streams_in_the_middle(engine: Engine) -> RawClient:
    """A client whose streams all have tokens, but nowhere near all."""
    client = engine.joined()
    for handle, prompt in PROMPTS.items():
        client.add(handle, prompt, max_tokens=NUM_TOKENS)
    while not all(sequence.token_ids for sequence in client.sequences.values()):
        client.wait_for(StepOutputs)
    return client


def check_whole(client: RawClient, undisturbed: dict[int, list[int]]) -> None:
    for handle in PROMPTS:
        sequence = client.finish(handle)
        assert sequence.finished is not None
        assert sequence.finished.reason is FinishReason.LENGTH
        assert sequence.token_ids == undisturbed[handle]


@pytest.mark.parametrize(
    ("flags", "rank"),
    [
        ((), 0),
        (("--tensor-parallel-size", "2"), 0),
        (("--tensor-parallel-size", "2"), 1),
        (("--pipeline-parallel-size", "2"), 0),
        (("--pipeline-parallel-size", "2"), 1),
    ],
)
def test_streams_go_on_when_a_worker_is_killed(
    flags: tuple[str, ...], rank: int, undisturbed: dict[int, list[int]]
) -> None:
    with engine_with("well", *flags) as engine:
        client = engine.joined()
        with engine.steps_held() as workers:
            for handle, prompt in PROMPTS.items():
                client.add(handle, prompt, max_tokens=NUM_TOKENS)
            client.stats_when(lambda stats: stats.num_running > 0)
            epoch = client.ping().epoch
            workers[rank].kill()
            recovering = client.wait_for(Recovering)
            assert recovering.stage == "starting the worker"
        assert wait_ended(workers, DEADLINE_S) == [], "a rank of the lost unit goes on"
        ready = client.wait_for(Ready)
        assert (ready.epoch, ready.lease_renewed) == (epoch, True)
        check_whole(client, undisturbed)
        stats = client.ping().stats
        assert (stats.num_worker_restarts, stats.num_running, stats.num_waiting) == (1, 0, 0)
        assert stats.num_free_blocks == stats.num_blocks
        assert "killed by SIGKILL" in engine.log()
        assert "Traceback" not in engine.log()


def test_streams_that_have_tokens_keep_them(undisturbed: dict[int, list[int]]) -> None:
    with engine_with("slowly") as engine:
        client = streams_in_the_middle(engine)
        engine.worker().kill()
        client.wait_for(Recovering)
        check_whole(client, undisturbed)


def test_an_idle_engine_replaces_a_killed_worker_too(undisturbed: dict[int, list[int]]) -> None:
    with engine_with("well") as engine:
        client = engine.joined()
        engine.worker().kill()
        client.wait_for(Ready)
        assert client.generate(1, PROMPTS[1], max_tokens=NUM_TOKENS) == undisturbed[1]


def test_a_stopped_worker_is_told_of_and_replaced(undisturbed: dict[int, list[int]]) -> None:
    with engine_with("slowly") as engine:
        client = streams_in_the_middle(engine)
        client.add(99, [9], max_tokens=4000)
        # The step has to be late compared with others, so that some must have been timed.
        client.stats_when(lambda stats: stats.num_steps > 16)
        stopped = engine.worker()
        stopped.suspend()
        client.pong_when(lambda pong: pong.stalled == "stopped by a signal: the worker")
        client.stats_when(lambda stats: stats.num_worker_restarts > 0)
        client.pong_when(lambda pong: pong.stalled == "")
        # It may have come before a pong.
        assert Recovering in client.heard
        check_whole(client, undisturbed)
        client.send(Abort([99]))
        # How long it may take follows from the steps before, which are slower on a busy machine.
        assert re.search(r"within \S+ s; stopped by a signal: the worker", engine.log())
        assert wait_ended([stopped], DEADLINE_S) == []


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        ("killed in a step", "the worker was lost: killed by SIGKILL"),
        ("end in a step with a word", "the device fell off the bus"),
        ("answer another step", "answered step 999, expected 3"),
        ("hang in a step", "did not finish step 3 within 1 s"),
    ],
)
def test_whatever_a_worker_does_in_a_step_is_survived(
    behaviour: str, text: str, undisturbed: dict[int, list[int]]
) -> None:
    with engine_with(behaviour, "--step-timeout", "1") as engine:
        client = engine.joined()
        # Every worker manages two steps, and may take the output of the second with it.
        assert client.generate(1, PROMPTS[1], max_tokens=4) == undisturbed[1][:4]
        assert text in engine.log()
        assert client.ping().stats.num_worker_restarts > 0


def test_a_request_that_workers_die_of_ends_and_the_others_do_not(undisturbed: dict[int, list[int]]) -> None:
    with engine_with("die of poison") as engine:
        client = engine.joined()
        client.add(99, [POISON], max_tokens=5)
        for handle, prompt in PROMPTS.items():
            client.add(handle, prompt, max_tokens=NUM_TOKENS)
        end = client.finish(99).finished
        assert end is not None
        assert (end.reason, end.error_code, end.error_status) == (FinishReason.ERROR, "request_unsafe", 500)
        check_whole(client, undisturbed)


def test_an_engine_whose_workers_keep_dying_gives_up() -> None:
    with engine_with("killed in a step") as engine:
        engine.joined().add(1, [1], max_tokens=1000)
        assert engine.exit_code() == 4
        assert "engine-core: error: lost workers 6 times within 60 s: the worker was lost" in engine.log()
        assert "Traceback" not in engine.log()


def test_workers_that_cannot_load_the_checkpoint_again_end_the_engine() -> None:
    with engine_with("load once") as engine:
        client = engine.joined()
        client.add(1, [1], max_tokens=1000)
        engine.worker().kill()
        assert engine.exit_code() == 4
        cause = "the workers could not be started again 3 times: .*shard 2 of 3 is missing"
        assert re.search(f"^engine-core: error: {cause}$", engine.log(), re.MULTILINE)
