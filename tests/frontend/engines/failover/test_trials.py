"""Suspicion: who is unsafe, who is cleared, and who is tried when."""

from __future__ import annotations

import pytest

from splitserve.engine_core.errors import EngineUnavailableError, UnsafeRequestError
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.failover.trials import MIN_PROGRESS_TOKENS
from tests.frontend.engines.failover.rig import WAIT_S, Rig

ENOUGH = range(MIN_PROGRESS_TOKENS)


def die(rig: Rig, *, runs: bool = True) -> None:
    """Lose the first engine, which ran all it had or nothing; its successor is ready at once."""
    rig.engines[0].lose(runs=runs)
    rig.engines[0].start()
    rig.pump(0.06)


def placed(sequences: list[OpenSequence]) -> list[bool]:
    return [sequence.place is not None and not sequence.has_ended for sequence in sequences]


def get_on(rig: Rig, *sequences: OpenSequence) -> None:
    for sequence in sequences:
        rig.engines[0].emit(sequence, *ENOUGH)
    rig.pump(0.06)


def test_the_only_request_of_two_deaths_is_unsafe() -> None:
    rig = Rig(1)
    (sequence,) = rig.begin()
    die(rig)
    assert sequence.error is None
    die(rig)
    assert isinstance(sequence.error, UnsafeRequestError)
    assert (sequence.error.status, sequence.error.code) == (500, "request_unsafe")
    assert rig.failover.stats.unsafe_requests == 1
    rig.engines[0].session.outbox.clear()
    die(rig)
    assert not rig.engines[0].asked()


@pytest.mark.parametrize("is_local", [False, True])
def test_a_request_that_may_only_have_waited_is_tried_before_it_is_unsafe(is_local: bool) -> None:
    rig = Rig(1)
    rig.engines[0].is_local, rig.engines[0].num_rows = is_local, 1
    (waiting,), (running,) = rig.begin(), rig.begin()
    die(rig, runs=False)
    get_on(rig, running)
    die(rig, runs=False)
    assert (waiting.error, placed([waiting])) == (None, [False])
    get_on(rig, running)
    assert placed([waiting]) == [True]
    die(rig, runs=False)
    assert isinstance(waiting.error, UnsafeRequestError)


def test_one_that_was_not_seen_to_run_although_there_was_no_queue_is_unsafe_at_once() -> None:
    rig = Rig(1)
    (sequence,) = rig.begin()
    die(rig, runs=False)
    die(rig, runs=False)
    assert isinstance(sequence.error, UnsafeRequestError)


def test_a_request_that_ran_before_one_of_two_deaths_is_unsafe() -> None:
    rig = Rig(1)
    (sequence,) = rig.begin()
    die(rig, runs=True)
    die(rig, runs=False)
    assert isinstance(sequence.error, UnsafeRequestError)


def test_a_few_tokens_that_merely_come_again_do_not_clear_a_request() -> None:
    rig = Rig(1)
    (sequence,) = rig.begin()
    die(rig)
    rig.engines[0].emit(sequence, *ENOUGH[:-1])
    rig.pump(1.0)
    die(rig)
    assert isinstance(sequence.error, UnsafeRequestError)


def test_a_request_that_gets_on_is_cleared() -> None:
    rig = Rig(1)
    (sequence,) = rig.begin()
    for _ in range(3):
        die(rig)
        rig.engines[0].emit(sequence, *ENOUGH)
    assert sequence.error is None


def test_native_code_gets_a_stream_back_once_it_is_cleared() -> None:
    rig = Rig(1)
    (sequence,) = rig.begin(streams=False)
    die(rig)
    assert sequence.watched
    assert rig.engines[0].asked()[-1].streams, "each of its tokens is seen"
    get_on(rig, sequence)
    assert not sequence.watched


def test_suspects_are_tried_one_at_a_time_after_the_others() -> None:
    rig = Rig(1)
    suspects = [rig.begin()[0] for _ in range(3)]
    die(rig)
    others = [rig.begin()[0] for _ in range(2)]
    die(rig)
    assert placed(suspects) == [False] * 3
    assert placed(others) == [True] * 2
    get_on(rig, others[0])
    assert placed(suspects) == [False] * 3
    get_on(rig, others[1])
    assert placed(suspects) == [True, False, False]
    get_on(rig, suspects[0])
    assert placed(suspects) == [True, True, False]
    # An end clears as well.
    rig.engines[0].finish(suspects[1])
    rig.pump(0.06)
    assert placed(suspects) == [True, False, True]
    get_on(rig, suspects[2])
    assert rig.pump(0.1) is None


def test_the_suspect_that_kills_on_its_trial_is_found() -> None:
    rig = Rig(1)
    suspects = [rig.begin()[0] for _ in range(3)]
    die(rig)
    others = [rig.begin()[0] for _ in range(20)]
    die(rig)
    get_on(rig, *others)
    get_on(rig, suspects[0])
    die(rig)
    assert isinstance(suspects[1].error, UnsafeRequestError)
    assert [each.error for each in (suspects[0], suspects[2], *others)] == [None] * 22


def test_more_in_common_than_can_be_tried_all_go_on() -> None:
    rig = Rig(1)
    sequences = [rig.begin()[0] for _ in range(9)]
    die(rig)
    die(rig)
    assert placed(sequences) == [True] * 9


def test_a_suspect_that_is_aborted_lets_the_next_one_go() -> None:
    rig = Rig(1)
    suspects = [rig.begin()[0] for _ in range(2)]
    die(rig)
    die(rig)
    assert placed(suspects) == [True, False]
    assert suspects[0].host is not None
    suspects[0].host.abort([suspects[0]])
    rig.pump(0.06)
    assert suspects[1].place is not None


def test_a_suspect_whose_turn_does_not_come_in_time_goes_on() -> None:
    rig = Rig(1)
    suspects = [rig.begin()[0] for _ in range(2)]
    die(rig)
    # It waits in the engine's queue, behind what runs there for other frontends.
    (other,) = rig.begin()
    die(rig)
    rig.pass_time(WAIT_S - 1)
    assert placed([*suspects, other]) == [False, False, True]
    rig.pass_time(1)
    assert placed([*suspects, other]) == [True] * 3


def test_a_suspect_whose_turn_does_not_come_ends_if_there_is_no_engine() -> None:
    rig = Rig(1)
    suspects = [rig.begin()[0] for _ in range(2)]
    die(rig)
    die(rig)
    rig.engines[0].lose()
    rig.pass_time(WAIT_S + 1)
    assert [type(each.error) for each in suspects] == [EngineUnavailableError] * 2


def test_a_blip_of_both_engines_makes_nobody_unsafe() -> None:
    rig = Rig(2)
    (sequence,) = rig.begin()
    rig.engines[0].lose()
    rig.pump()
    assert sequence.place is rig.engines[1]
    rig.engines[1].lose()
    rig.pump()
    assert sequence.error is None
    for engine in rig.engines[:2]:
        engine.start(new_life=False, lease_renewed=True)
    rig.pump()
    assert placed([sequence]) == [True]


def test_the_only_request_in_common_is_tried_nowhere_until_the_deaths_are_certain() -> None:
    rig = Rig(3)
    (sequence,) = rig.begin()
    rig.engines[0].lose()
    rig.pump()
    rig.engines[1].lose()
    rig.pump(1.0)
    assert placed([sequence]) == [False], "a third engine is ready"
    rig.engines[1].start()
    rig.pump(1.0)
    assert placed([sequence]) == [False]
    assert sequence.error is None
    rig.engines[0].start()
    assert isinstance(sequence.error, UnsafeRequestError)


def test_one_that_waits_for_certainty_goes_on_if_a_death_was_none() -> None:
    rig = Rig(3)
    (sequence,) = rig.begin()
    rig.engines[0].lose()
    rig.pump()
    rig.engines[1].lose()
    rig.engines[0].start()
    rig.engines[1].start(new_life=False, lease_renewed=True)
    rig.pump()
    assert placed([sequence]) == [True]
    # The first death still speaks against it.
    assert sequence.place is not None
    next(engine for engine in rig.engines if engine is sequence.place).lose()
    for engine in rig.engines:
        engine.start()
    assert isinstance(sequence.error, UnsafeRequestError)


def test_a_suspect_on_trial_goes_on_if_the_engine_was_only_out_of_reach() -> None:
    rig = Rig(1)
    suspects = [rig.begin()[0] for _ in range(2)]
    die(rig)
    die(rig)
    assert placed(suspects) == [True, False]
    rig.engines[0].lose()
    rig.pump()
    rig.engines[0].start(new_life=False, lease_renewed=True)
    rig.pump(0.06)
    assert placed(suspects) == [True, False]
    get_on(rig, suspects[0])
    assert placed(suspects) == [True, True]


def test_one_that_waits_for_certainty_may_be_aborted() -> None:
    rig = Rig(2)
    (sequence,) = rig.begin()
    for engine in rig.engines[:2]:
        engine.lose()
        rig.pump()
    assert sequence.host is not None
    sequence.host.abort([sequence])
    for engine in rig.engines[:2]:
        engine.start()
    assert rig.pump(0.06) is None
    assert rig.failover.stats.unsafe_requests == 0


def test_a_broken_connection_within_a_machine_is_a_certain_death() -> None:
    rig = Rig(3)
    (sequence,) = rig.begin()
    for engine in rig.engines[:2]:
        engine.is_local = True
        engine.lose()
        rig.pump()
    assert isinstance(sequence.error, UnsafeRequestError)
    assert not rig.engines[2].asked()


def test_requests_on_an_engine_that_was_only_out_of_reach_are_acquitted() -> None:
    rig = Rig(2)
    (sequence,) = rig.begin()
    rig.engines[0].lose()
    rig.pump()
    rig.engines[0].start(new_life=False, lease_renewed=True)
    rig.engines[1].lose()
    rig.pump()
    assert sequence.error is None


@pytest.mark.parametrize("n", [1, 4])
def test_all_sequences_of_a_request_are_one_suspect(n: int) -> None:
    rig = Rig(1)
    sequences = rig.begin(n)
    die(rig)
    for sequence in sequences[1:]:
        rig.engines[0].emit(sequence, *ENOUGH)
    rig.pump(1.0)
    die(rig)
    assert all(isinstance(sequence.error, UnsafeRequestError) for sequence in sequences)
