"""The session's state machine: every (state, event) pair, and what happens to open sequences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.errors import (
    ContextLengthError,
    EngineRequestError,
    EngineUnavailableError,
    InvalidRequestError,
    OverloadedError,
    ProtocolError,
)
from engine_core.ipc.codec import pack_int32, pack_int64
from engine_core.ipc.messages import (
    Abort,
    CallResult,
    Draining,
    Finished,
    FinishReason,
    Hello,
    Loading,
    Ping,
    Refused,
    Rejected,
    Started,
    StepOutputs,
)
from frontend import engine_session
from frontend.engine_session import EngineSession, EngineState
from frontend.open_sequence import OpenSequence
from tests.frontend.client.messages import add, end, logprob, outputs, pong, ready, tokens

S = EngineState
NOW = 100.0


def wake() -> None:
    pass


def session_in(state: EngineState) -> EngineSession:
    """Bring a session into a state; serving ones have sequence 900 open; the outbox is empty."""
    session = EngineSession("f", "0", "ipc://e")
    session.tick(NOW)
    if state is S.LOADING:
        session.receive(Loading("engine-0", "weights", 0.5), NOW)
    elif state is S.REFUSED:
        session.receive(Refused("no", 2, "9"), NOW)
    elif state is not S.CONNECTING:
        session.receive(ready(), NOW)
        session.open(add(900), wake)
        if state is S.DRAINING:
            session.receive(Draining(5.0), NOW)
        elif state is S.LOST:
            session.disconnected(NOW)
    assert session.state is state
    session.outbox.clear()
    return session


def silence(session: EngineSession) -> None:
    for quarter in range(1, 50):
        session.tick(NOW + quarter / 4)


EVENTS: dict[str, Callable[[EngineSession], None]] = {
    "connected": lambda s: s.connected(NOW),
    "loading": lambda s: s.receive(Loading("engine-0", "weights", 0.7), NOW),
    "ready same": lambda s: s.receive(ready(1, lease_renewed=True), NOW),
    "ready same, lease over": lambda s: s.receive(ready(1), NOW),
    "ready other": lambda s: s.receive(ready(2), NOW),
    "refused": lambda s: s.receive(Refused("no", 2, "9"), NOW),
    "draining": lambda s: s.receive(Draining(5.0), NOW),
    "pong same": lambda s: s.receive(pong(), NOW),
    "pong draining": lambda s: s.receive(pong(draining=True), NOW),
    "pong other": lambda s: s.receive(pong(epoch=2), NOW),
    "pong without lease": lambda s: s.receive(pong(epoch=0), NOW),
    "outputs": lambda s: s.receive(tokens(900, [5]), NOW),
    "call result": lambda s: s.receive(CallResult(1, True), NOW),
    "disconnected": lambda s: s.disconnected(NOW),
    "silence": silence,
}

# Per event: the state that follows connecting, loading, ready, draining, lost, refused.
C, L, R, D, X, F = S.CONNECTING, S.LOADING, S.READY, S.DRAINING, S.LOST, S.REFUSED
STATES = (C, L, R, D, X, F)
FOLLOWING = {
    "connected": (C, L, R, D, X, F),
    "loading": (L, L, L, L, L, L),
    "ready same": (R, R, R, D, R, R),
    "ready same, lease over": (R, R, R, R, R, R),
    "ready other": (R, R, R, R, R, R),
    "refused": (F, F, F, F, F, F),
    "draining": (C, L, D, D, X, F),
    "pong same": (C, L, R, D, X, F),
    "pong draining": (C, L, D, D, X, F),
    "pong other": (C, L, X, X, X, F),
    "pong without lease": (C, L, X, X, X, F),
    "outputs": (C, L, R, D, X, F),
    "call result": (C, L, R, D, X, F),
    "disconnected": (C, X, X, X, X, X),
    "silence": (C, X, X, X, X, F),
}
PAIRS = [(state, event, FOLLOWING[event][i]) for event in EVENTS for i, state in enumerate(STATES)]
LOSING = {"loading", "ready same, lease over", "ready other", "refused", "pong other", "pong without lease"}
LOSING |= {"disconnected", "silence"}


@pytest.mark.parametrize(("state", "event", "following"), PAIRS)
def test_every_pair_leads_where_the_table_says(
    state: EngineState, event: str, following: EngineState
) -> None:
    session = session_in(state)
    EVENTS[event](session)
    assert session.state is following


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", [S.READY, S.DRAINING])
def test_open_sequences_fail_exactly_when_the_engine_is_lost(state: EngineState, event: str) -> None:
    session = session_in(state)
    sequence = session.open_sequences[900]
    EVENTS[event](session)
    assert isinstance(sequence.error, EngineUnavailableError) == (event in LOSING)
    assert (900 in session.open_sequences) == (event not in LOSING)
    assert session.counters.losses == (event in LOSING)


@pytest.mark.parametrize(
    ("state", "event"),
    [
        *[(state, "connected") for state in STATES],
        *[(state, f"pong {kind}") for state in (C, L, X, F) for kind in ("same", "other", "without lease")],
        *[(state, f"pong {kind}") for state in (R, D) for kind in ("other", "without lease")],
        *[(state, "silence") for state in STATES],
    ],
)
def test_hello_is_said_when_the_engine_may_not_know_us(state: EngineState, event: str) -> None:
    session = session_in(state)
    EVENTS[event](session)
    assert sum(isinstance(message, Hello) for message in session.outbox) == 1


@pytest.mark.parametrize(("state", "interval_s"), [(C, 1.0), (L, 1.0), (X, 1.0), (F, 10.0)])
def test_hello_is_repeated(state: EngineState, interval_s: float) -> None:
    session = session_in(state)
    session.connected(NOW)
    session.outbox.clear()
    session.tick(NOW + interval_s - 0.1)
    assert not session.outbox
    session.tick(NOW + interval_s)
    assert [type(message) for message in session.outbox] == [Hello]


@pytest.mark.parametrize("state", [S.READY, S.DRAINING])
def test_a_serving_engine_is_pinged_every_second(state: EngineState) -> None:
    session = session_in(state)
    for quarter in range(1, 13):
        session.tick(NOW + quarter / 4)
        session.receive(pong(), NOW + quarter / 4)
    assert [type(message) for message in session.outbox] == [Ping] * 3
    assert session.last_pong_s == NOW + 3


def stood_still() -> tuple[EngineSession, OpenSequence]:
    """A session that ticks again after longer than lease and silence, with what came meanwhile unread."""
    session = session_in(S.READY)
    sequence = session.open_sequences[900]
    session.tick(NOW + 0.25)
    session.outbox.clear()
    session.tick(NOW + 42.0)
    return session, sequence


@pytest.mark.parametrize(("lease_s", "num_pings"), [(1.0, 8), (2.0, 4), (4.0, 2), (3600.0, 2)])
def test_a_short_lease_is_renewed_four_times_in_its_time(lease_s: float, num_pings: int) -> None:
    session = EngineSession("f", "0", "ipc://e")
    session.receive(ready(lease_s=lease_s), NOW)
    session.outbox.clear()
    for quarter in range(1, 9):
        session.tick(NOW + quarter / 4)
    assert [type(message) for message in session.outbox] == [Ping] * num_pings


def test_a_frontend_that_stood_still_past_its_lease_asks_and_keeps_its_requests() -> None:
    session, sequence = stood_still()
    assert [type(message) for message in session.outbox] == [Ping]
    session.receive(tokens(900, [5, 6]), NOW + 42.0)
    session.receive(pong(), NOW + 42.1)
    session.tick(NOW + 42.25)
    assert (session.state, sequence.error) == (S.READY, None)
    assert sequence.token_ids.tolist() == [5, 6]


def test_a_frontend_that_stood_still_and_was_dropped_gives_its_requests_up() -> None:
    session, sequence = stood_still()
    late = session.open(add(901), wake)
    session.receive(pong(epoch=0), NOW + 42.1)
    assert session.state is S.LOST
    assert isinstance(sequence.error, EngineUnavailableError)
    assert isinstance(late.error, EngineUnavailableError), "what a stranger asks for is ignored"
    assert [type(message) for message in session.outbox] == [Hello]


def test_a_short_standstill_is_not_taken_for_the_engines_silence() -> None:
    session = session_in(S.READY)
    for quarter in range(1, 20):
        session.tick(NOW + quarter / 4)
    session.tick(NOW + 12)
    assert session.state is S.READY


def test_orphans_are_aborted_when_the_same_life_comes_back() -> None:
    session = session_in(S.LOST)
    session.receive(ready(1, lease_renewed=True), NOW)
    assert session.outbox[0] == Abort([900])
    assert not session.orphans


@pytest.mark.parametrize("message", [ready(2), ready(1)])
def test_orphans_of_a_life_that_is_over_are_forgotten(message: object) -> None:
    session = session_in(S.LOST)
    session.receive(message, NOW)  # type: ignore[arg-type]
    assert not any(isinstance(sent, Abort) for sent in session.outbox)
    assert not session.orphans


def test_an_abort_that_found_no_room_is_said_when_the_same_life_comes_back() -> None:
    session = session_in(S.READY)
    session.abort([900])
    session.disconnected(NOW)
    session.receive(ready(1, lease_renewed=True), NOW)
    assert session.outbox[0] == Abort([900])
    assert not session.orphans


@pytest.mark.parametrize("state", [C, L, D, X, F])
def test_only_a_ready_engine_takes_requests(state: EngineState) -> None:
    with pytest.raises(EngineUnavailableError, match=state.value):
        session_in(state).open(add(1), wake)


def test_open_sequences_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_session, "MAX_OPEN_SEQUENCES", 3)
    session = session_in(S.READY)
    session.open(add(1), wake)
    session.open(add(2), wake)
    with pytest.raises(OverloadedError):
        session.open(add(3), wake)


def test_hello_waits_in_the_outbox_once() -> None:
    session = EngineSession("f", "0")
    for second in range(100):
        session.tick(NOW + second)
        session.connected(NOW + second)
    assert len(session.outbox) == 1


class Opened:
    """A ready session with open sequences that count their wake-ups."""

    def __init__(self, *handles: int) -> None:
        self.session = session_in(S.READY)
        self.wakes: dict[int, int] = dict.fromkeys(handles, 0)
        self.sequences: dict[int, OpenSequence] = {}
        for handle in handles:
            self.sequences[handle] = self.session.open(add(handle), lambda handle=handle: self._wake(handle))
        self.session.outbox.clear()

    def _wake(self, handle: int) -> None:
        self.wakes[handle] += 1


def test_tokens_of_all_messages_that_have_arrived_wake_their_sequence_once() -> None:
    opened = Opened(1, 2, 3)
    opened.session.receive(outputs([(1, 10, 0), (2, 20, 0), (1, 11, 1)]), NOW)
    opened.session.receive(outputs([(1, 12, 2)]), NOW)
    assert opened.wakes == {1: 0, 2: 0, 3: 0}
    opened.session.wake_up(NOW)
    assert opened.sequences[1].token_ids.tolist() == [10, 11, 12]
    assert opened.sequences[2].token_ids.tolist() == [20]
    assert opened.wakes == {1: 1, 2: 1, 3: 0}
    opened.session.receive(outputs([(2, 21, 1)]), NOW)
    opened.session.wake_up(NOW)
    opened.session.wake_up(NOW)
    assert opened.wakes == {1: 1, 2: 2, 3: 0}


def test_sequences_that_share_a_callable_wake_it_once_when_all_have_their_tokens() -> None:
    session = session_in(EngineState.READY)
    seen: list[list[int]] = []
    sequences: list[OpenSequence] = []

    def look() -> None:
        seen.append([len(sequence.token_ids) for sequence in sequences])

    sequences += [session.open(add(handle), look) for handle in (1, 2, 3)]
    session.receive(outputs([(1, 10, 0), (2, 20, 0), (1, 11, 1)], [end(3)]), NOW)
    session.wake_up(NOW)
    assert seen == [[2, 1, 0]]


def test_outputs_of_another_epoch_are_dropped() -> None:
    opened = Opened(1)
    opened.session.receive(outputs([(1, 10, 0)], [end(1)], epoch=7), NOW)
    assert not opened.sequences[1].token_ids
    assert opened.sequences[1].finished is None
    assert opened.session.counters.stale_outputs == 1


def test_a_repeated_token_is_dropped() -> None:
    opened = Opened(1)
    opened.session.receive(tokens(1, [10, 11]), NOW)
    opened.session.receive(tokens(1, [11, 12], first=1), NOW)
    assert opened.sequences[1].token_ids.tolist() == [10, 11, 12]
    assert opened.session.counters.sequence_errors == 1


def test_a_gap_ends_the_request_and_aborts_it() -> None:
    opened = Opened(1, 2)
    opened.session.receive(outputs([(1, 10, 0), (1, 12, 2), (1, 13, 3), (2, 20, 0)]), NOW)
    assert "tokens 1 to 1" in str(opened.sequences[1].error)
    assert list(opened.session.outbox) == [Abort([1])]
    assert opened.sequences[2].token_ids.tolist() == [20]


def test_columns_that_do_not_fit_are_a_protocol_error_and_change_nothing() -> None:
    opened = Opened(1)
    for handles, token_ids in (([1], [1, 2]), ([1, 1], [1])):
        with pytest.raises(ProtocolError):
            opened.session.receive(
                StepOutputs(1, pack_int64(handles), pack_int32(token_ids), pack_int32([0])), NOW
            )
    assert not opened.sequences[1].token_ids


def test_the_end_comes_with_the_last_token() -> None:
    opened = Opened(1)
    finished = Finished(1, FinishReason.STOP, 5, num_cached_tokens=3)
    opened.session.receive(outputs([(1, 5, 0)], [finished]), NOW)
    opened.session.wake_up(NOW)
    assert opened.sequences[1].finished == finished
    assert opened.sequences[1].num_cached_tokens == 3
    assert opened.wakes[1] == 1
    assert 1 not in opened.session.open_sequences


def test_started_and_logprobs_are_kept_for_their_sequence() -> None:
    opened = Opened(1)
    message = outputs(
        [(1, 5, 0)], logprobs=[logprob(1, 0, 5), logprob(99, 0, 5)], prompt_logprobs=[logprob(1, 1, 2)]
    )
    started = StepOutputs(1, b"", b"", b"", started=[Started(1, 2, 0.1), Started(99, 1, 0.1)])
    opened.session.receive(started, NOW)
    opened.session.receive(message, NOW)
    sequence = opened.sequences[1]
    assert (len(sequence.logprobs), len(sequence.prompt_logprobs), sequence.num_cached_tokens) == (1, 1, 2)


@pytest.mark.parametrize(
    ("rejected", "kind"),
    [
        (Rejected(1, 400, "invalid_value", "bad top_k", "top_k"), InvalidRequestError),
        (Rejected(1, 400, "context_length_exceeded", "too long", "prompt"), ContextLengthError),
        (Rejected(1, 404, "model_not_found", "what", "model"), InvalidRequestError),
        (Rejected(1, 429, "overloaded", "full", retry_after_s=2.5), OverloadedError),
        (Rejected(1, 503, "engine_unavailable", "draining"), EngineUnavailableError),
        (Rejected(1, 500, "request_failed", "oops"), EngineRequestError),
    ],
)
def test_a_rejection_becomes_the_typed_error(rejected: Rejected, kind: type[Exception]) -> None:
    opened = Opened(1)
    opened.session.receive(rejected, NOW)
    opened.session.wake_up(NOW)
    error = opened.sequences[1].error
    assert type(error) is kind
    assert (error.status, error.code, str(error)) == (rejected.status, rejected.code, rejected.message)
    assert getattr(error, "param", None) == rejected.param
    assert getattr(error, "retry_after_s", 0.0) == rejected.retry_after_s
    assert opened.wakes[1] == 1


def test_an_error_finish_becomes_an_error() -> None:
    opened = Opened(1)
    failed = Finished(
        1, FinishReason.ERROR, error_code="row_failed", error_message="NaN logits", error_status=500
    )
    opened.session.receive(outputs([], [failed]), NOW)
    assert isinstance(opened.sequences[1].error, EngineRequestError)
    assert opened.sequences[1].error.code == "row_failed"


def test_abort_is_sent_for_open_handles_only() -> None:
    opened = Opened(1, 2)
    opened.session.abort([1, 77])
    opened.session.abort([1])
    assert list(opened.session.outbox) == [Abort([1])]
    opened.session.receive(tokens(1, [5]), NOW)
    assert opened.session.counters.stale_outputs == 1


@given(st.lists(st.sampled_from(sorted(EVENTS)), max_size=30))
def test_no_order_of_events_leaves_a_sequence_neither_open_nor_ended(events: list[str]) -> None:
    session, opened = EngineSession("f", "0"), []
    for event in events:
        EVENTS[event](session)
        if session.state is S.READY:
            opened.append(session.open(add(session.next_handle()), wake))
        for sequence in opened:
            is_open = sequence.request.handle in session.open_sequences
            assert is_open != (sequence.error is not None)
        assert session.state in (S.READY, S.DRAINING) or not session.open_sequences
        assert sum(isinstance(message, Hello) for message in session.outbox) <= 1
