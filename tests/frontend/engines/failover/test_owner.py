"""The owner of open sequences, state by state: where they go on, how long they wait, what ends them."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.engine_core.errors import (
    EngineRequestError,
    EngineUnavailableError,
    InvalidRequestError,
    OverloadedError,
)
from splitserve.engine_core.ipc.messages import Draining, HandOver, Recovering, Rejected, Started, StepOutputs
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.connection.displacement import DisplacedBy
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.failover import owner, placements
from tests.frontend.engines.failover.rig import WAIT_S, Rig, host_of, resumed
from tests.frontend.engines.messages import logprob, outputs

UNREADY = Rejected(0, 503, "engine_unavailable", "the engine is recovering")
FULL = Rejected(0, 429, "overloaded", "queue full", None, 3.0)


def test_a_sequence_of_a_lost_engine_goes_on_at_another_with_its_tokens() -> None:
    rig = Rig()
    (sequence,) = rig.begin(streams=False)
    rig.engines[0].emit(sequence, 10, 11)
    rig.engines[0].lose()
    rig.pump()
    (asked,) = rig.engines[1].asked()
    assert resumed(asked) == [10, 11]
    assert asked.sampling == sequence.request.sampling
    assert asked.prompt_token_ids == sequence.request.prompt_token_ids
    assert asked.continues
    assert (sequence.handle, sequence.place) == (asked.handle, rig.engines[1])
    rig.engines[1].emit(sequence, 12)
    assert sequence.token_ids.tolist() == [10, 11, 12]
    assert sequence.error is None


def test_several_losses_add_to_what_is_resumed() -> None:
    rig = Rig(3)
    (sequence,) = rig.begin()
    for i, engine in enumerate(rig.engines):
        engine.emit(sequence, *range(10 * i, 10 * i + 9))
        engine.lose()
        rig.pump()
        if i < 2:
            assert resumed(rig.engines[i + 1].asked()[0]) == [
                t for k in range(i + 1) for t in range(10 * k, 10 * k + 9)
            ]
    assert rig.failover.num_displaced == 1


def test_sequences_of_a_request_go_on_together() -> None:
    rig = Rig()
    sequences = rig.begin(3)
    rig.engines[0].emit(sequences[1], 5)
    rig.engines[0].finish(sequences[2])
    rig.engines[0].lose()
    rig.pump()
    assert [resumed(each) for each in rig.engines[1].asked()] == [[], [5]]


def test_prompt_logprobs_are_asked_for_again_only_before_the_first_token() -> None:
    rig = Rig()
    sampling = SamplingParams(seed=1, prompt_logprobs=2)
    (early,), (late,) = rig.begin(sampling=sampling), rig.begin(sampling=sampling)
    rig.engines[0].emit(late, 5)
    rig.engines[0].lose()
    rig.pump()
    assert [each.sampling.prompt_logprobs for each in rig.engines[1].asked()] == [2, None]
    assert early.request.sampling.prompt_logprobs == late.request.sampling.prompt_logprobs == 2


def test_the_figures_of_the_first_engine_are_kept() -> None:
    rig = Rig()
    (sequence,) = rig.begin()
    for engine, cached, queued_s in ((rig.engines[0], 2, 0.5), (rig.engines[1], 3, 9.0)):
        started = StepOutputs(1, b"", b"", b"", started=[Started(sequence.handle, cached, queued_s)])
        engine.session.receive(started, rig.now_s)
        if engine is rig.engines[0]:
            engine.lose()
            rig.pump()
    rig.engines[1].finish(sequence)
    assert (sequence.num_cached_tokens, sequence.queue_time_s) == (2, 0.5)


def test_logprobs_that_were_not_taken_stay_and_none_comes_twice() -> None:
    rig = Rig()
    (sequence,) = rig.begin()
    first = outputs([(sequence.handle, 5, 0)], logprobs=[logprob(sequence.handle, 0, 5)])
    rig.engines[0].session.receive(first, rig.now_s)
    rig.engines[0].session.receive(first, rig.now_s)
    # This one is lost with its token.
    lost = outputs([(sequence.handle, 7, 2)], logprobs=[logprob(sequence.handle, 2, 7)])
    rig.engines[0].session.receive(lost, rig.now_s)
    rig.pump()
    (asked,) = rig.engines[0].asked() or rig.engines[1].asked()
    assert resumed(asked) == [5]
    assert [entry.token_index for entry in sequence.logprobs] == [0]


def test_a_sequence_waits_for_the_engine_to_come_back() -> None:
    rig = Rig(1)
    (sequence,) = rig.begin()
    rig.engines[0].lose()
    assert rig.pump() is not None
    rig.pass_time(WAIT_S - 1)
    assert sequence.error is None
    rig.engines[0].start()
    assert rig.pump() is not None, "it is watched"
    assert len(rig.engines[0].asked()) == 1
    assert rig.failover.stats.wait_sum_s == pytest.approx(WAIT_S - 1)


@pytest.mark.parametrize("wait_s", [0.0, WAIT_S])
def test_a_sequence_that_has_waited_long_enough_ends(wait_s: float) -> None:
    rig = Rig(1, wait_s=wait_s)
    (sequence,) = rig.begin()
    rig.engines[0].lose()
    rig.pump()
    if wait_s:
        assert sequence.error is None
        rig.pass_time(wait_s)
    assert isinstance(sequence.error, EngineUnavailableError)
    assert "connection" in str(sequence.error)
    assert rig.num_wakes == 1
    assert rig.pump() is None, "nothing is left to do"
    rig.engines[0].start()
    rig.pump()
    assert not rig.engines[0].asked()


def test_a_timeout_counts_from_the_arrival() -> None:
    rig = Rig()
    (sequence,) = rig.begin(timeout_s=20.0)
    rig.now_s += 5.0
    rig.engines[0].lose()
    rig.pump()
    assert rig.engines[1].asked()[0].timeout_s == pytest.approx(15.0)
    assert sequence.request.timeout_s == 20.0


def test_a_sequence_times_out_while_it_waits() -> None:
    rig = Rig(1)
    (sequence,) = rig.begin(timeout_s=4.0)
    rig.engines[0].lose()
    rig.pass_time(3.5)
    assert sequence.error is None
    rig.pass_time(0.75)
    assert sequence.error is not None
    assert (sequence.error.code, sequence.error.status) == ("timeout", 504)


@pytest.mark.parametrize("max_migrations", [0, 2])
def test_a_request_ends_when_too_many_engines_were_lost_under_it(max_migrations: int) -> None:
    rig = Rig(1, max_migrations=max_migrations)
    (sequence,) = rig.begin()
    for _ in range(max_migrations):
        rig.engines[0].emit(sequence, *range(9))
        rig.engines[0].lose()
        rig.engines[0].start()
        rig.pass_time(0.3)
        assert sequence.error is None
    rig.engines[0].emit(sequence, *range(9))
    rig.engines[0].lose()
    rig.pump()
    assert isinstance(sequence.error, EngineUnavailableError)


def test_a_hand_over_is_no_death_and_neither_is_the_end_after_it() -> None:
    rig = Rig(2, max_migrations=0)
    (sequence,) = rig.begin()
    rig.engines[0].session.receive(HandOver("restart"), rig.now_s)
    rig.pump()
    assert len(rig.engines[1].asked()) == 1
    rig.engines[0].lose()
    rig.pump()
    assert sequence.error is None
    assert rig.failover.stats.migrations[DisplacedBy.HANDED_OVER] == 1


def test_a_connection_that_comes_back_was_no_death() -> None:
    rig = Rig(1)
    (sequence,) = rig.begin()
    for _ in range(10):
        rig.engines[0].session.outbox.clear()
        rig.engines[0].lose()
        old = sequence.handle
        rig.engines[0].start(new_life=False, lease_renewed=True)
        assert rig.engines[0].aborted() == [old]
        rig.pump()
    assert sequence.error is None
    assert host_of(sequence).num_deaths == 0


def test_sequences_of_a_recovering_engine_stay_and_new_ones_go_elsewhere() -> None:
    rig = Rig(1)
    (sequence,) = rig.begin()
    rig.engines[0].session.receive(Recovering("starting", 0.0), rig.now_s)
    rig.pump()
    assert sequence.place is rig.engines[0]
    assert rig.engines[0].takes_model is None
    rig.engines[0].start(new_life=False, lease_renewed=True)
    rig.engines[0].emit(sequence, 4)
    assert sequence.token_ids.tolist() == [4]


def test_a_new_request_that_an_unready_engine_rejects_goes_elsewhere() -> None:
    rig = Rig()
    (sequence,) = rig.begin()
    rig.engines[0].session.receive(msgspec.structs.replace(UNREADY, handle=sequence.handle), rig.now_s)
    rig.pump()
    assert sequence.place is rig.engines[1]


def test_a_new_request_for_which_there_is_no_room_ends() -> None:
    rig = Rig()
    (sequence,) = rig.begin()
    rig.engines[0].session.receive(msgspec.structs.replace(FULL, handle=sequence.handle), rig.now_s)
    assert isinstance(sequence.error, OverloadedError)


def test_what_was_running_is_offered_again_later_and_later_where_there_is_no_room() -> None:
    rig = Rig(2)
    (sequence,) = rig.begin()
    rig.engines[0].lose()
    rig.pump()
    asked_at = [rig.now_s]
    while sequence.error is None:
        if sequence.place is rig.engines[1]:
            asked_at.append(rig.now_s)
            full = msgspec.structs.replace(FULL, handle=sequence.handle)
            rig.engines[1].session.receive(full, rig.now_s)
        rig.pump(0.05)
    assert isinstance(sequence.error, OverloadedError)
    assert rig.now_s - asked_at[0] == pytest.approx(WAIT_S, abs=placements.MAX_RETRY_S + 0.1)
    gaps = [later - earlier for earlier, later in pairwise(asked_at)]
    assert len(asked_at) < 25
    assert max(gaps) <= placements.MAX_RETRY_S + 0.1


def test_a_resumption_that_is_wrong_ends() -> None:
    rig = Rig(2)
    (sequence,) = rig.begin()
    rig.engines[0].lose()
    rig.pump()
    wrong = Rejected(sequence.handle, 400, "invalid_value", "bad", "top_k")
    rig.engines[1].session.receive(wrong, rig.now_s)
    assert isinstance(sequence.error, InvalidRequestError)


def test_a_gap_is_closed_by_going_on_from_before_it() -> None:
    rig = Rig(1)
    (sequence,) = rig.begin()
    rig.engines[0].emit(sequence, 5)
    old = sequence.handle
    rig.engines[0].session.receive(outputs([(old, 7, 2)]), rig.now_s)
    assert rig.engines[0].aborted() == [old]
    rig.pump()
    assert resumed(rig.engines[0].asked()[0]) == [5]
    rig.engines[0].session.receive(outputs([(old, 6, 1)]), rig.now_s)
    assert sequence.token_ids.tolist() == [5]
    rig.engines[0].emit(sequence, 6)
    assert sequence.token_ids.tolist() == [5, 6]


def test_an_unreadable_message_makes_all_go_on_anew_but_not_for_ever() -> None:
    rig = Rig(1, max_migrations=2)
    sequences = [rig.begin()[0] for _ in range(3)]
    for _ in range(2):
        rig.engines[0].session.garbled()
        rig.pump()
        assert len(rig.engines[0].asked()) == 3
    rig.engines[0].session.garbled()
    rig.pump()
    assert all(isinstance(sequence.error, EngineUnavailableError) for sequence in sequences)


def test_an_aborted_sequence_does_not_go_on() -> None:
    rig = Rig(1)
    first, second = rig.begin(2)
    rig.engines[0].lose()
    host_of(first).abort([first])
    rig.engines[0].start()
    rig.pump()
    assert len(rig.engines[0].asked()) == 1
    host_of(second).abort([first, second])
    assert rig.engines[0].aborted() == [second.handle]
    rig.engines[0].lose()
    rig.pass_time(1.0)
    assert rig.pump() is None


@pytest.mark.parametrize("continues", [False, True])
def test_a_step_of_a_search_waits_for_an_engine_the_first_too(continues: bool) -> None:
    """The first is asked for after the request was taken, so an engine may be lost in between."""
    rig = Rig(1)
    client = rig.failover.begin("m", rig.engines[0])
    rig.engines[0].session.receive(Draining(5.0), rig.now_s)
    (sequence,) = client.open(rig.messages(continues=continues), rig.wake)
    assert sequence.place is None
    rig.engines[1].start()
    rig.pump()
    assert sequence.place is rig.engines[1]


def test_requests_go_to_the_least_busy_engine() -> None:
    rig = Rig(3)
    for _ in range(3):
        rig.begin(engine=1)
    sequences = [rig.begin(engine=0)[0] for _ in range(5)]
    rig.engines[0].lose()
    rig.pump()
    assert [engine.num_open for engine in rig.engines] == [0, 4, 4]
    assert all(sequence.error is None for sequence in sequences)


def test_a_turn_places_and_notifies_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placements, "MAX_PLACED_PER_TURN", 4)
    monkeypatch.setattr(owner, "MAX_WAKES_PER_TURN", 1)
    rig = Rig()
    for _ in range(10):
        rig.begin()
    rig.engines[0].lose()
    counts = []
    while rig.failover.pump() == 0:
        counts.append(rig.engines[1].num_open)
    assert counts == [4, 8]
    assert rig.engines[1].num_open == 10


def test_what_goes_on_is_counted() -> None:
    rig = Rig()
    rig.engines[1].model = msgspec.structs.replace(rig.engines[1].model, numerics="other")
    rig.engines[1].start()
    sequences = rig.begin(2)
    rig.engines[0].emit(sequences[0], 1, 2, 3)
    rig.engines[0].lose()
    rig.pump(0.2)
    stats = rig.failover.stats
    assert stats.migrations[DisplacedBy.DISCONNECTED] == 2
    assert (stats.resumed_tokens, stats.changed_numerics, stats.given_up) == (3, 1, 0)
    assert sum(stats.wait_counts) == 2


def test_the_close_ends_what_waits() -> None:
    rig = Rig(1)
    (sequence,) = rig.begin()
    rig.engines[0].lose()
    rig.failover.close(EngineUnavailableError("shutting down"))
    assert "shutting down" in str(sequence.error)
    assert rig.num_wakes == 1


EVENTS = ("open", "token", "lose", "start", "back", "hand over", "reject", "garble", "abort", "time", "end")


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 11)), max_size=60))
def test_a_sequence_is_always_in_one_place(events: list[tuple[str, int]]) -> None:
    rig = Rig(3)
    sequences: list[OpenSequence] = []
    aborted: set[int] = set()
    for event, number in events:
        engine = rig.engines[number % 3]
        chosen = sequences[number % len(sequences)] if sequences else None
        session = engine.session
        if event == "open" and engine.takes_model:
            sequences += rig.begin(1 + number % 3, engine=number % 3)
        elif event == "lose":
            engine.lose()
        elif event in ("start", "back"):
            engine.start(new_life=event == "start" or not engine.epoch, lease_renewed=event == "back")
        elif event == "hand over":
            session.receive(HandOver("restart"), rig.now_s)
        elif event == "garble":
            session.garbled()
        elif event == "time":
            rig.pass_time(float(number))
        elif chosen is not None and event == "abort":
            host_of(chosen).abort([chosen])
            aborted.add(id(chosen))
        elif chosen is not None and chosen.place is not None and not chosen.has_ended:
            where = next(each for each in rig.engines if each is chosen.place)
            if event == "token":
                where.emit(chosen, number)
            elif event == "reject":
                rejected = msgspec.structs.replace(UNREADY if number % 2 else FULL, handle=chosen.handle)
                where.session.receive(rejected, rig.now_s)
            elif event == "end":
                where.finish(chosen)
        rig.pump()
        for sequence in sequences:
            tables = [each for each in rig.engines if sequence in list(each.session.sequences)]
            is_displaced = sequence in host_of(sequence).displaced
            is_over = sequence.has_ended or id(sequence) in aborted
            assert len(tables) + is_displaced + is_over == 1
            assert (tables == [sequence.place]) or not tables
            assert sequence.relayed is None
            assert (sequence.relay is not None) == bool(tables) or is_over


def test_a_request_that_cannot_be_resumed_ends_and_strands_no_other() -> None:
    rig = Rig(1)
    (broken,), (sound,) = rig.begin(), rig.begin()
    rig.engines[0].lose()
    broken.request = msgspec.structs.replace(sound.request, resume_token_ids=None)
    rig.engines[0].start()
    rig.pump()
    assert isinstance(broken.error, EngineRequestError)
    assert sound.place is rig.engines[0]
    assert rig.failover.num_displaced == 0


def test_a_closed_owner_opens_nothing() -> None:
    rig = Rig(0)
    client = rig.failover.begin("m", rig.engines[0])
    rig.failover.close(EngineUnavailableError("closing"))
    with pytest.raises(EngineUnavailableError, match="closing"):
        client.open(rig.messages(), rig.wake)
    assert rig.failover.num_displaced == 0
