"""The rolling restart's decisions, state by state and event by event."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from splitserve.engine_core.launcher.child_state import Action, ChildSpec, Prepare, Say, Send, Start
from splitserve.engine_core.launcher.rolling import LEAVE_TIMEOUT_S, START_TIMEOUT_S, RollStage
from splitserve.engine_core.launcher.supervisor import Supervisor, SupervisorState

ENGINE, A, B, C, D = "engine", "a", "b", "c", "d"
STOP_TIMEOUT_S = 40.0
TERM, KILL, USR1 = signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1
IDLE, PREPARES, LEAVES, STARTS, FRONTEND = RollStage


def started(spare: str = C + D) -> Supervisor:
    """Two frontends run, all serve."""
    supervisor = Supervisor(
        [
            ChildSpec(ENGINE, 1, STOP_TIMEOUT_S),
            *(ChildSpec(name, 0, STOP_TIMEOUT_S) for name in (A, B)),
            *(ChildSpec(name, 0, STOP_TIMEOUT_S, is_spare=True) for name in spare),
        ]
    )
    assert supervisor.begin() == [Start(ENGINE), Start(A), Start(B)]
    for name in (ENGINE, A, B):
        assert supervisor.on_serving(name, 1.0) == []
    return supervisor


def deeds(actions: list[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, Say)]


def words(actions: list[Action]) -> str:
    return " ".join(action.text for action in actions if isinstance(action, Say))


def preparing() -> Supervisor:
    """A successor of the engine is on its way."""
    supervisor = started()
    supervisor.roll(100.0)
    return supervisor


def leaving() -> Supervisor:
    """The engine was asked to hand over at 100 s."""
    supervisor = preparing()
    supervisor.rolling.on_prepared("", 100.0)
    return supervisor


def starting() -> Supervisor:
    """The next engine has been started."""
    supervisor = leaving()
    supervisor.on_exit(ENGINE, 0, 100.5)
    return supervisor


def replacing() -> Supervisor:
    """C was started at 101 s to replace A."""
    supervisor = starting()
    supervisor.on_serving(ENGINE, 101.0)
    return supervisor


def replacing_last() -> Supervisor:
    """C serves, A finishes its streams, D was started at 102 s to replace B."""
    supervisor = replacing()
    supervisor.on_serving(C, 102.0)
    return supervisor


def rolled() -> Supervisor:
    """C and D serve, A and B finish their streams since 102 and 103 s."""
    supervisor = replacing_last()
    supervisor.on_serving(D, 103.0)
    return supervisor


def test_all_are_replaced_one_after_another() -> None:
    supervisor = started()
    assert deeds(supervisor.roll(100.0)) == [Prepare()]
    assert deeds(supervisor.rolling.on_prepared("", 100.0)) == [Send(ENGINE, USR1)]
    assert supervisor.is_rolling
    assert supervisor.on_exit(ENGINE, 0, 100.5) == [Start(ENGINE)]
    assert deeds(supervisor.on_serving(ENGINE, 101.0)) == [Start(C)]
    assert deeds(supervisor.on_serving(C, 102.0)) == [Send(A, TERM), Start(D)]
    assert deeds(supervisor.on_serving(D, 103.0)) == [Send(B, TERM)]
    rolling = supervisor.rolling
    assert (supervisor.is_rolling, rolling.num_begun, rolling.num_ended, rolling.failure) == (False, 1, 1, "")
    assert deeds(supervisor.on_exit(A, 0, 110.0)) == []
    assert deeds(supervisor.on_exit(B, 0, 111.0)) == []
    assert [name for name in (A, B, C, D) if supervisor.is_wanted(name)] == [C, D]


def test_the_next_roll_uses_the_places_that_became_free() -> None:
    supervisor = rolled()
    supervisor.on_exit(B, 0, 104.0)
    supervisor.on_exit(A, 0, 104.0)
    supervisor.roll(105.0)
    supervisor.rolling.on_prepared("", 105.0)
    supervisor.on_exit(ENGINE, 0, 105.0)
    assert deeds(supervisor.on_serving(ENGINE, 105.0)) == [Start(A)]
    assert deeds(supervisor.on_serving(A, 106.0)) == [Send(C, TERM), Start(B)]
    assert deeds(supervisor.on_serving(B, 107.0)) == [Send(D, TERM)]


def test_without_a_free_place_the_next_successor_waits_for_one() -> None:
    supervisor = rolled()
    supervisor.roll(104.0)
    supervisor.rolling.on_prepared("", 104.0)
    supervisor.on_exit(ENGINE, 0, 105.0)
    assert deeds(supervisor.on_serving(ENGINE, 105.0)) == []
    assert supervisor.rolling.stage is FRONTEND
    assert deeds(supervisor.on_exit(B, 0, 106.0)) == [Start(B)]


def test_a_roll_that_is_asked_for_during_another_follows_it_once() -> None:
    supervisor = replacing_last()
    assert deeds(supervisor.roll(102.0)) == []
    assert deeds(supervisor.roll(102.0)) == []
    assert deeds(supervisor.on_serving(D, 103.0)) == [Send(B, TERM), Prepare()]
    assert (supervisor.rolling.num_begun, supervisor.rolling.num_ended) == (2, 1)
    supervisor.rolling.on_prepared("", 103.0)
    supervisor.on_exit(A, 0, 104.0)
    supervisor.on_exit(B, 0, 104.0)
    supervisor.on_exit(ENGINE, 0, 104.0)
    supervisor.on_serving(ENGINE, 105.0)
    supervisor.on_serving(A, 105.0)
    assert deeds(supervisor.on_serving(B, 106.0)) == [Send(D, TERM)]
    assert not supervisor.is_rolling


def test_a_roll_that_is_asked_for_during_one_that_fails_follows_too() -> None:
    supervisor = replacing()
    supervisor.roll(101.0)
    assert deeds(supervisor.on_exit(C, 1, 102.0)) == [Prepare()]


def test_a_successor_of_the_engine_that_cannot_be_prepared_ends_the_roll_before_it_has_begun() -> None:
    supervisor = preparing()
    actions = supervisor.rolling.on_prepared("the reason", 101.0)
    assert deeds(actions) == []
    assert "rolling restart failed: the reason" in words(actions)
    assert (supervisor.rolling.failure, supervisor.is_rolling) == ("the reason", False)
    assert deeds(supervisor.rolling.on_prepared("", 102.0)) == []


def test_a_spare_that_fails_while_a_frontend_is_replaced_is_told_of_and_the_roll_goes_on() -> None:
    supervisor = replacing()
    actions = supervisor.rolling.on_prepared("the reason", 101.5)
    assert words(actions) == "no spare engine-core: the reason"
    assert deeds(supervisor.on_serving(C, 102.0)) == [Send(A, TERM), Start(D)]


def test_an_engine_lost_while_its_successor_prepares_is_a_loss_and_the_roll_goes_on() -> None:
    supervisor = preparing()
    assert "unexpectedly" in words(supervisor.on_exit(ENGINE, -9, 100.5))
    assert deeds(supervisor.on_time(100.5)) == [Start(ENGINE)]
    assert deeds(supervisor.rolling.on_prepared("", 100.6)) == []
    assert deeds(supervisor.on_serving(ENGINE, 101.0)) == [Start(C)]


@pytest.mark.parametrize("code", [0, -signal.SIGUSR1])
def test_an_engine_that_hands_over_is_no_loss(code: int) -> None:
    supervisor = started()
    for number in range(20):
        supervisor.roll(100.0 + number)
        supervisor.rolling.on_prepared("", 100.0 + number)
        assert supervisor.on_exit(ENGINE, code, 100.0 + number) == [Start(ENGINE)]
        supervisor.rolling.drop()
    assert supervisor.state is SupervisorState.RUNNING


def test_an_engine_that_fails_while_it_hands_over_is_a_loss_and_the_roll_goes_on() -> None:
    supervisor = leaving()
    assert "unexpectedly (exit code 1)" in words(supervisor.on_exit(ENGINE, 1, 100.5))
    assert deeds(supervisor.on_time(100.5)) == [Start(ENGINE)]
    assert deeds(supervisor.on_serving(ENGINE, 101.0)) == [Start(C)]


def test_an_engine_that_does_not_hand_over_in_time_is_killed_and_replaced() -> None:
    supervisor = leaving()
    assert supervisor.next_due_s() == 100.0 + LEAVE_TIMEOUT_S
    assert deeds(supervisor.on_time(100.0 + LEAVE_TIMEOUT_S)) == [Send(ENGINE, KILL)]
    assert supervisor.on_exit(ENGINE, -9, 111.0) == [Start(ENGINE)]


def test_an_engine_that_hangs_while_it_hands_over_is_killed_and_replaced() -> None:
    supervisor = leaving()
    assert deeds(supervisor.on_hung(ENGINE)) == [Send(ENGINE, KILL)]
    assert supervisor.on_exit(ENGINE, -9, 102.0) == [Start(ENGINE)]


def test_an_engine_that_does_not_run_is_waited_for() -> None:
    supervisor = started()
    supervisor.on_exit(ENGINE, -9, 99.0)
    assert deeds(supervisor.roll(99.0)) == [Prepare()]
    assert deeds(supervisor.rolling.on_prepared("", 99.0)) == []
    assert deeds(supervisor.on_time(99.0)) == [Start(ENGINE)]
    assert deeds(supervisor.on_serving(ENGINE, 100.0)) == [Start(C)]


def test_an_engine_lost_while_a_frontend_is_replaced_is_restarted_and_the_roll_goes_on() -> None:
    supervisor = replacing()
    supervisor.on_exit(ENGINE, -9, 101.5)
    assert deeds(supervisor.on_time(101.5)) == [Start(ENGINE)]
    assert deeds(supervisor.on_serving(ENGINE, 102.0)) == []
    assert deeds(supervisor.on_serving(C, 102.0)) == [Send(A, TERM), Start(D)]


def test_a_successor_that_ends_before_it_serves_ends_the_roll_and_the_old_one_serves_on() -> None:
    supervisor = replacing()
    actions = supervisor.on_exit(C, 2, 102.0)
    assert deeds(actions) == []
    assert "rolling restart failed: c ended before it served (exit code 2)" in words(actions)
    assert supervisor.rolling.failure == "c ended before it served (exit code 2)"
    assert supervisor.next_due_s() == float("inf"), "it is not restarted"
    assert supervisor.state is SupervisorState.RUNNING
    supervisor.on_exit(A, 1, 103.0)
    assert deeds(supervisor.on_time(103.0)) == [Start(A)]


def test_a_successor_that_never_serves_is_killed() -> None:
    supervisor = replacing()
    assert deeds(supervisor.on_time(101.0 + START_TIMEOUT_S)) == [Send(C, KILL)]
    supervisor.on_exit(C, -9, 500.0)
    assert not supervisor.is_rolling
    assert "SIGKILL" in supervisor.rolling.failure


def test_an_old_frontend_that_ends_early_leaves_its_place_to_its_successor() -> None:
    supervisor = replacing()
    # B's successor takes the place that became free.
    assert deeds(supervisor.on_exit(A, -9, 101.5)) == [Start(A)]
    assert deeds(supervisor.on_serving(C, 102.0)) == []
    assert deeds(supervisor.on_serving(A, 102.0)) == [Send(B, TERM)]
    assert [name for name in (A, C, D) if supervisor.is_wanted(name)] == [A, C]
    assert supervisor.rolling.failure == ""


def test_a_successor_that_is_alone_is_restarted_like_any_frontend() -> None:
    supervisor = replacing()
    supervisor.on_exit(A, -9, 101.5)
    supervisor.on_exit(C, -9, 101.6)
    assert deeds(supervisor.on_time(101.6)) == [Start(C)]
    assert supervisor.is_rolling


def test_a_frontend_that_was_restarted_meanwhile_needs_no_successor() -> None:
    supervisor = starting()
    supervisor.on_exit(A, -9, 100.6)
    assert deeds(supervisor.on_time(100.6)) == [Start(A)]
    assert deeds(supervisor.on_serving(ENGINE, 101.0)) == [Start(C)]
    assert deeds(supervisor.on_serving(C, 102.0)) == [Send(B, TERM)]
    assert supervisor.is_wanted(A)


def test_an_old_frontend_that_does_not_finish_in_time_is_killed() -> None:
    supervisor = rolled()
    assert deeds(supervisor.on_time(102.0 + STOP_TIMEOUT_S)) == [Send(A, KILL)]
    supervisor.on_exit(A, -9, 142.0)
    assert deeds(supervisor.on_time(103.0 + STOP_TIMEOUT_S)) == [Send(B, KILL)]
    supervisor.on_exit(B, -9, 143.0)
    assert (supervisor.state, supervisor.rolling.failure) == (SupervisorState.RUNNING, "")


def test_a_frontend_that_leaves_does_not_count_as_one_that_is_left() -> None:
    """C serves and B is about to be replaced; once both have failed, A, which leaves, keeps nothing up."""
    supervisor = replacing_last()
    supervisor.on_exit(D, 1, 102.0)
    now_s = 103.0
    for name in (B, C):
        for _ in range(6):
            supervisor.on_exit(name, 1, now_s)
            now_s += 2.0
            supervisor.on_time(now_s)
    assert supervisor.state is SupervisorState.STOPPING


def test_a_stop_lets_those_that_leave_finish() -> None:
    supervisor = replacing_last()
    assert deeds(supervisor.stop(TERM, 102.5)) == [Send(B, TERM), Send(C, TERM), Send(D, TERM)]
    assert supervisor.rolling.failure == "the server was stopped"
    assert deeds(supervisor.on_time(102.0 + STOP_TIMEOUT_S)) == [Send(A, KILL)], "at its own time"
    for name in (A, B, C):
        assert deeds(supervisor.on_exit(name, 0, 143.0)) == []
    assert deeds(supervisor.on_exit(D, 0, 143.0)) == [Send(ENGINE, TERM)]


def test_a_second_signal_ends_those_that_leave_at_once_too() -> None:
    supervisor = replacing_last()
    supervisor.stop(TERM, 102.5)
    assert deeds(supervisor.stop(TERM, 102.6)) == [Send(name, TERM) for name in (ENGINE, A, B, C, D)]


def test_an_engine_that_handed_over_into_a_stop_is_not_started_again() -> None:
    supervisor = leaving()
    supervisor.stop(TERM, 100.1)
    assert deeds(supervisor.on_exit(ENGINE, 0, 100.2)) == []
    supervisor.on_exit(A, 0, 101.0)
    supervisor.on_exit(B, 0, 101.0)
    assert (supervisor.state, supervisor.exit_code) == (SupervisorState.DONE, 0)


Event = Callable[[Supervisor], list[Action]]


def end_of(name: str, code: int = 0) -> Event:
    return lambda supervisor: supervisor.on_exit(name, code, 104.0)


def serving(name: str) -> Event:
    return lambda supervisor: supervisor.on_serving(name, 104.0)


def at(now_s: float) -> Event:
    return lambda supervisor: supervisor.on_time(now_s)


def roll(supervisor: Supervisor) -> list[Action]:
    return supervisor.roll(104.0)


def prepared(supervisor: Supervisor) -> list[Action]:
    return supervisor.rolling.on_prepared("", 104.0)


def not_prepared(supervisor: Supervisor) -> list[Action]:
    return supervisor.rolling.on_prepared("why", 104.0)


def stop(supervisor: Supervisor) -> list[Action]:
    return supervisor.stop(TERM, 104.0)


def stopping() -> Supervisor:
    supervisor = started()
    supervisor.stop(TERM, 100.0)
    return supervisor


TABLE = [
    (started, roll, PREPARES, [Prepare()]),
    (started, prepared, IDLE, []),
    (started, not_prepared, IDLE, []),
    (started, serving(ENGINE), IDLE, []),
    (started, end_of(ENGINE), IDLE, []),
    (started, end_of(A), IDLE, []),
    (preparing, roll, PREPARES, []),
    (preparing, prepared, LEAVES, [Send(ENGINE, USR1)]),
    (preparing, not_prepared, IDLE, []),
    (preparing, end_of(ENGINE), STARTS, []),
    (preparing, end_of(A), PREPARES, []),
    (preparing, serving(A), PREPARES, []),
    (preparing, stop, IDLE, [Send(A, TERM), Send(B, TERM)]),
    (leaving, roll, LEAVES, []),
    (leaving, prepared, LEAVES, []),
    (leaving, not_prepared, LEAVES, []),
    (leaving, end_of(ENGINE), STARTS, [Start(ENGINE)]),
    (leaving, end_of(ENGINE, 1), STARTS, []),
    (leaving, end_of(ENGINE, 3), IDLE, [Send(A, TERM), Send(B, TERM)]),
    (leaving, end_of(A), LEAVES, []),
    (leaving, serving(A), LEAVES, []),
    (leaving, at(100.0 + LEAVE_TIMEOUT_S), LEAVES, [Send(ENGINE, KILL)]),
    (leaving, stop, IDLE, [Send(A, TERM), Send(B, TERM)]),
    (starting, roll, STARTS, []),
    (starting, end_of(ENGINE), STARTS, []),
    (starting, end_of(ENGINE, 2), IDLE, [Send(A, TERM), Send(B, TERM)]),
    (starting, end_of(A), STARTS, []),
    (starting, serving(ENGINE), FRONTEND, [Start(C)]),
    (starting, serving(A), STARTS, []),
    (starting, at(1e9), STARTS, []),
    (starting, stop, IDLE, [Send(A, TERM), Send(B, TERM)]),
    (replacing, roll, FRONTEND, []),
    (replacing, end_of(ENGINE), FRONTEND, []),
    (replacing, end_of(A), FRONTEND, [Start(A)]),
    (replacing, end_of(B), FRONTEND, []),
    (replacing, end_of(C), IDLE, []),
    (replacing, serving(C), FRONTEND, [Send(A, TERM), Start(D)]),
    (replacing, serving(ENGINE), FRONTEND, []),
    (replacing, at(101.0 + START_TIMEOUT_S), FRONTEND, [Send(C, KILL)]),
    (replacing, stop, IDLE, [Send(A, TERM), Send(B, TERM), Send(C, TERM)]),
    (replacing_last, serving(D), IDLE, [Send(B, TERM)]),
    (replacing_last, end_of(A), FRONTEND, []),
    (replacing_last, end_of(B), IDLE, []),
    (replacing_last, end_of(C), FRONTEND, []),
    (replacing_last, end_of(D), IDLE, []),
    (replacing_last, at(102.0 + STOP_TIMEOUT_S), FRONTEND, [Send(A, KILL)]),
    (rolled, roll, PREPARES, [Prepare()]),
    (rolled, end_of(A), IDLE, []),
    (rolled, at(102.0 + STOP_TIMEOUT_S), IDLE, [Send(A, KILL)]),
    (stopping, roll, IDLE, []),
    (stopping, serving(A), IDLE, []),
]


@pytest.mark.parametrize(("begin", "event", "stage", "expected"), TABLE)
def test_every_stage_answers_every_event_as_the_table_says(
    begin: Callable[[], Supervisor], event: Event, stage: RollStage, expected: list[Action]
) -> None:
    supervisor = begin()
    assert deeds(event(supervisor)) == expected
    assert supervisor.rolling.stage is stage
