"""The session's state machine: every (state, event) pair, pings, leases, and what is said to the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.engine_core.errors import EngineUnavailableError, OverloadedError, SplitServeError
from splitserve.engine_core.ipc.messages import (
    Abort,
    CallResult,
    Draining,
    EngineStats,
    HandOver,
    Hello,
    Loading,
    Ping,
    Ready,
    Recovering,
    Refused,
)
from splitserve.frontend.engines.connection import session as engine_session
from splitserve.frontend.engines.connection.displacement import DisplacedBy, NoOwner
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.connection.session import EngineSession, EngineState
from tests.frontend.engines.messages import add, pong, ready, tokens

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
        elif state is S.RECOVERING:
            session.receive(Recovering("starting", 0.0), NOW)
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
    "recovering": lambda s: s.receive(Recovering("starting", 0.5), NOW),
    "hand over": lambda s: s.receive(HandOver("restart"), NOW),
    "garbled": lambda s: s.garbled(),
    "call result": lambda s: s.receive(CallResult(1, True), NOW),
    "disconnected": lambda s: s.disconnected(NOW),
    "silence": silence,
}

# Per event: the state that follows connecting, loading, ready, draining, recovering, lost, refused.
C, L, R, D, V, X, F = S.CONNECTING, S.LOADING, S.READY, S.DRAINING, S.RECOVERING, S.LOST, S.REFUSED
STATES = (C, L, R, D, V, X, F)
FOLLOWING = {
    "connected": STATES,
    "loading": (L, L, L, L, L, L, L),
    "ready same": (R, R, R, D, R, R, R),
    "ready same, lease over": (R, R, R, R, R, R, R),
    "ready other": (R, R, R, R, R, R, R),
    "refused": (F, F, F, F, F, F, F),
    "draining": (C, L, D, D, D, X, F),
    "pong same": STATES,
    "pong draining": (C, L, D, D, D, X, F),
    "pong other": (C, L, X, X, X, X, F),
    "pong without lease": (C, L, X, X, X, X, F),
    "outputs": STATES,
    "recovering": (C, L, V, D, V, X, F),
    "hand over": (C, L, D, D, D, X, F),
    "garbled": STATES,
    "call result": STATES,
    "disconnected": (C, X, X, X, X, X, X),
    "silence": (C, X, X, X, X, X, F),
}
PAIRS = [(state, event, FOLLOWING[event][i]) for event in EVENTS for i, state in enumerate(STATES)]
LOSING = {"loading", "ready same, lease over", "ready other", "refused", "pong other", "pong without lease"}
LOSING |= {"disconnected", "silence"}
RELEASING = LOSING | {"hand over", "garbled"}
ABORTING = {"ready same, lease over", "ready other", "garbled"}


@pytest.mark.parametrize(("state", "event", "following"), PAIRS)
def test_every_pair_leads_where_the_table_says(
    state: EngineState, event: str, following: EngineState
) -> None:
    session = session_in(state)
    EVENTS[event](session)
    assert session.state is following


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", [S.READY, S.DRAINING, S.RECOVERING])
def test_open_sequences_go_back_exactly_when_the_engine_runs_them_no_more(
    state: EngineState, event: str
) -> None:
    session = session_in(state)
    sequence = session.sequences[900]
    EVENTS[event](session)
    assert isinstance(sequence.error, EngineUnavailableError) == (event in RELEASING)
    assert (900 in session.sequences) == (event not in RELEASING)
    assert session.num_losses == (event in LOSING)
    assert (Abort([900]) in session.outbox) == (event in ABORTING)


class Noting(NoOwner):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.causes: list[DisplacedBy] = []
        self.returns: list[bool] = []

    def displaced(
        self, sequences: Sequence[OpenSequence], cause: DisplacedBy, error: SplitServeError
    ) -> None:
        self.causes.append(cause)

    def returned(self, *, same_life: bool) -> None:
        self.returns.append(same_life)


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        ("disconnected", DisplacedBy.DISCONNECTED),
        ("silence", DisplacedBy.SILENT),
        ("ready other", DisplacedBy.RESTARTED),
        ("loading", DisplacedBy.RESTARTED),
        ("refused", DisplacedBy.RESTARTED),
        ("pong other", DisplacedBy.RESTARTED),
        ("ready same, lease over", DisplacedBy.HANDED_OVER),
        ("hand over", DisplacedBy.HANDED_OVER),
        ("garbled", DisplacedBy.GARBLED),
    ],
)
def test_the_owner_is_told_why(event: str, cause: DisplacedBy) -> None:
    session = session_in(S.READY)
    session.owner = owner = Noting()
    EVENTS[event](session)
    assert owner.causes == [cause]


def test_the_end_of_an_engine_that_has_handed_over_is_no_death() -> None:
    session = session_in(S.READY)
    session.owner = owner = Noting()
    session.receive(HandOver("restart"), NOW)
    session.disconnected(NOW)
    session.receive(ready(2), NOW)
    session.disconnected(NOW)
    assert owner.causes == [DisplacedBy.HANDED_OVER] * 2 + [DisplacedBy.DISCONNECTED]


def test_the_owner_is_told_whether_the_same_life_is_back() -> None:
    session = session_in(S.READY)
    session.owner = owner = Noting()
    session.disconnected(NOW)
    session.receive(ready(1, lease_renewed=True), NOW)
    session.receive(ready(2), NOW)
    assert owner.returns == [True, False]


@pytest.mark.parametrize(("median_step_s", "silence_s"), [(0.0, 2.0), (0.05, 2.0), (0.5, 10.0)])
def test_slow_steps_lengthen_the_silence_that_is_borne(median_step_s: float, silence_s: float) -> None:
    session = session_in(S.READY)
    stats = EngineStats(median_step_s=median_step_s)
    session.receive(msgspec.structs.replace(pong(), stats=stats), NOW)
    for quarter in range(1, int(4 * silence_s) + 1):
        session.tick(NOW + quarter / 4)
    assert session.state is S.READY
    session.tick(NOW + silence_s + 0.25)
    assert session.state is S.LOST


def test_a_loading_engine_may_be_silent_for_longer() -> None:
    session = session_in(S.LOADING)
    for quarter in range(1, 41):
        session.tick(NOW + quarter / 4)
    assert session.state is S.LOADING
    session.tick(NOW + 10.25)
    assert session.state is S.LOST


@pytest.mark.parametrize(
    ("state", "event"),
    [
        *[(state, "connected") for state in STATES],
        *[(state, f"pong {kind}") for state in (C, L, X, F) for kind in ("same", "other", "without lease")],
        *[(state, f"pong {kind}") for state in (R, D, V) for kind in ("other", "without lease")],
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


@pytest.mark.parametrize("state", [S.READY, S.DRAINING, S.RECOVERING])
def test_a_serving_engine_is_pinged_twice_a_second(state: EngineState) -> None:
    session = session_in(state)
    for quarter in range(1, 13):
        session.tick(NOW + quarter / 4)
        session.receive(pong(), NOW + quarter / 4)
    assert [type(message) for message in session.outbox] == [Ping] * 6
    assert session.last_pong_s == NOW + 3


@pytest.mark.parametrize("event", ["disconnected", "another life"])
def test_what_an_engine_said_of_itself_goes_with_it(event: str) -> None:
    session = session_in(S.READY)
    session.receive(pong(), NOW)
    assert session.last_pong is not None
    if event == "disconnected":
        session.disconnected(NOW + 1)
    else:
        session.receive(ready(epoch=2), NOW + 1)
    assert session.last_pong is None
    assert session.last_pong_s == NOW, "when it last answered is known all the same"


def stood_still() -> tuple[EngineSession, OpenSequence]:
    """A session that ticks again after longer than lease and silence, with what came meanwhile unread."""
    session = session_in(S.READY)
    sequence = session.sequences[900]
    session.tick(NOW + 0.25)
    session.outbox.clear()
    session.tick(NOW + 42.0)
    return session, sequence


@pytest.mark.parametrize(("lease_s", "num_pings"), [(1.0, 8), (2.0, 4), (4.0, 4), (3600.0, 4)])
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
    for quarter in range(1, 8):
        session.tick(NOW + quarter / 4)
    session.tick(NOW + 12)
    assert session.state is S.READY


# The socket may have queued a request behind a Hello: whoever listens next takes it, and holds it for nobody.
@pytest.mark.parametrize("answer", [ready(1, lease_renewed=True), ready(1), ready(2)])
def test_orphans_are_aborted_whichever_life_answers(answer: Ready) -> None:
    session = session_in(S.LOST)
    session.receive(answer, NOW)
    assert session.outbox[0] == Abort([900])
    assert not session.orphans


def test_an_abort_that_found_no_room_is_said_when_the_same_life_comes_back() -> None:
    session = session_in(S.READY)
    session.abort([900])
    session.disconnected(NOW)
    session.receive(ready(1, lease_renewed=True), NOW)
    assert session.outbox[0] == Abort([900])
    assert not session.orphans


@pytest.mark.parametrize("state", [C, L, D, V, X, F])
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


@given(st.lists(st.sampled_from(sorted(EVENTS)), max_size=30))
def test_no_order_of_events_leaves_a_sequence_neither_open_nor_ended(events: list[str]) -> None:
    session, opened = EngineSession("f", "0"), []
    for event in events:
        EVENTS[event](session)
        if session.state is S.READY:
            opened.append(session.open(add(session.next_handle()), wake))
        for sequence in opened:
            is_open = sequence.handle in session.sequences
            assert is_open != (sequence.error is not None)
        assert session.state in (S.READY, S.DRAINING, S.RECOVERING) or not session.sequences
        assert sum(isinstance(message, Hello) for message in session.outbox) <= 1
