"""Engines that do not take what is displaced, and sequences that are displaced when it is too late."""

from __future__ import annotations

import msgspec
import pytest

from splitserve.engine_core.errors import EngineUnavailableError
from splitserve.engine_core.ipc.messages import Rejected
from splitserve.engine_core.sampling_params import SamplingParams
from tests.frontend.engines.failover.rig import WAIT_S, Rig
from tests.frontend.engines.messages import MODEL


def refuse(rig: Rig, status: int, code: str) -> int:
    """Let every engine reject what it was asked for; return how many there were."""
    refused = 0
    for engine in rig.engines:
        for asked in engine.asked():
            refused += 1
            engine.session.receive(Rejected(asked.handle, status, code, "no"), rig.now_s)
    return refused


def test_engines_that_refuse_in_turn_do_not_keep_a_sequence_waiting_for_ever() -> None:
    rig = Rig(2, wait_s=5.0)
    (sequence,) = rig.begin()
    rig.engines[0].emit(sequence, 5)
    rig.engines[0].lose()
    rig.engines[0].start()
    for _ in range(100):
        rig.pump(0.1)
        refuse(rig, 429, "overloaded")
    rig.pump()
    assert sequence.error is not None
    assert refuse(rig, 429, "overloaded") == 0


def test_engines_that_refuse_in_turn_are_each_asked_later_and_later() -> None:
    rig = Rig(3)
    (sequence,) = rig.begin()
    rig.engines[0].emit(sequence, 5)
    rig.engines[0].lose()
    num_asked = 0
    for _ in range(200):
        rig.pump(0.005)
        num_asked += refuse(rig, 429, "overloaded")
    # Each of two at once, and after 0.1, 0.2 and 0.4 s.
    assert num_asked == 2 * 4


def test_a_sequence_that_does_not_fit_one_engine_goes_on_at_another() -> None:
    rig = Rig(3)
    (sequence,) = rig.begin()
    rig.engines[0].emit(sequence, 5)
    rig.engines[0].lose()
    rig.pump()
    assert refuse(rig, 400, "context_length_exceeded") == 1
    rig.pump()
    assert sequence.error is None
    assert sum(len(engine.asked()) for engine in rig.engines) == 1


@pytest.mark.parametrize(("max_tokens", "is_too_small"), [(97, False), (98, True), (None, True)])
def test_an_engine_that_would_cut_an_answer_short_is_not_asked(
    max_tokens: int | None, is_too_small: bool
) -> None:
    rig = Rig(1)
    (sequence,) = rig.begin(sampling=SamplingParams(seed=1, max_tokens=max_tokens))
    rig.engines[1].model = msgspec.structs.replace(MODEL, max_model_len=100)
    rig.engines[1].start()
    rig.engines[0].lose()
    rig.pump()
    assert (sequence.place is None) == is_too_small
    rig.engines[0].start()
    rig.pump()
    assert sequence.place is rig.engines[0 if is_too_small else 1]


def test_an_engine_that_may_cut_an_answer_short_is_better_than_none() -> None:
    rig = Rig(1)
    (sequence,) = rig.begin(sampling=SamplingParams(seed=1, max_tokens=200))
    rig.engines[1].model = msgspec.structs.replace(MODEL, max_model_len=100)
    rig.engines[1].start()
    rig.engines[0].lose()
    rig.pass_time(WAIT_S - 1)
    assert sequence.place is None
    rig.pass_time(1)
    assert sequence.place is rig.engines[1]


def test_a_request_that_was_never_accepted_has_no_right_to_a_place() -> None:
    rig = Rig(2)
    (sequence,) = rig.begin(queue_timeout_s=1.0)
    rejected = Rejected(sequence.handle, 503, "engine_unavailable", "draining")
    rig.engines[0].session.receive(rejected, rig.now_s)
    rig.pump()
    (asked,) = rig.engines[1].asked()
    assert not asked.continues
    assert sequence.error is None


def test_the_queue_timeout_of_a_request_that_no_engine_took_runs_on() -> None:
    rig = Rig(1)
    (sequence,) = rig.begin(queue_timeout_s=4.0)
    rejected = Rejected(sequence.handle, 503, "engine_unavailable", "draining")
    rig.engines[0].session.receive(rejected, rig.now_s)
    rig.engines[0].lose()
    rig.pass_time(3.0)
    assert sequence.error is None
    rig.engines[1].start()
    rig.pump()
    assert rig.engines[1].asked()[0].queue_timeout_s == pytest.approx(1.0)
    rig.engines[1].session.receive(msgspec.structs.replace(rejected, handle=sequence.handle), rig.now_s)
    rig.engines[1].lose()
    rig.pass_time(1.25)
    assert sequence.error is not None
    assert (sequence.error.code, sequence.error.status) == ("queue_timeout", 503)


def test_the_queue_timeout_of_a_request_that_an_engine_took_is_over() -> None:
    rig = Rig(1)
    (sequence,) = rig.begin(queue_timeout_s=1.0)
    rig.engines[0].lose()
    rig.pass_time(2.0)
    rig.engines[1].start()
    rig.pump()
    assert rig.engines[1].asked()[0].queue_timeout_s == 0.0
    assert sequence.error is None


def test_what_is_displaced_after_the_end_ends() -> None:
    rig = Rig(1)
    (sequence,) = rig.begin()
    rig.failover.close(EngineUnavailableError("shutting down"))
    rig.engines[0].lose()
    assert "shutting down" in str(sequence.error)


def test_an_engine_is_lost_once() -> None:
    session = Rig(1).engines[0].session
    now_s = 10_000.0
    for tick in range(20):
        session.tick(now_s + tick / 4)
    assert session.num_losses == 1
    session.disconnected(now_s + 6)
    assert session.num_losses == 1


def test_a_later_step_of_a_beam_search_waits_for_a_place() -> None:
    rig = Rig(1)
    (sequence,) = rig.begin(continues=True)
    rejected = Rejected(sequence.handle, 429, "overloaded", "full")
    rig.engines[0].session.receive(rejected, rig.now_s)
    assert sequence.error is None
    rig.pump(1.0)
    assert len(rig.engines[0].asked()) == 1
