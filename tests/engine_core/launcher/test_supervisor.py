"""The supervisor's decisions, state by state and event by event."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from splitserve.engine_core.launcher.child_state import (
    NEVER,
    Action,
    ChildSpec,
    Say,
    Send,
    Start,
)
from splitserve.engine_core.launcher.supervisor import (
    FAILING_DELAY_S,
    KILL_GRACE_S,
    Supervisor,
    SupervisorState,
)
from splitserve.engine_core.process.restart_intensity import MAX_RESTARTS, RESTART_WINDOW_S, SECOND_DELAY_S

ENGINE, FIRST, SECOND = "engine", "frontend 1", "frontend 2"
STOP_TIMEOUT_S = 40.0
TERM, KILL = signal.SIGTERM, signal.SIGKILL


def started() -> Supervisor:
    supervisor = Supervisor(
        [
            ChildSpec(ENGINE, 1, STOP_TIMEOUT_S),
            ChildSpec(FIRST, 0, STOP_TIMEOUT_S),
            ChildSpec(SECOND, 0, STOP_TIMEOUT_S),
        ]
    )
    assert supervisor.begin() == [Start(ENGINE), Start(FIRST), Start(SECOND)]
    return supervisor


def deeds(actions: list[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, Say)]


def words(actions: list[Action]) -> str:
    return " ".join(action.text for action in actions if isinstance(action, Say))


def test_nothing_is_due_while_all_run() -> None:
    supervisor = started()
    assert supervisor.next_due_s() == NEVER
    assert supervisor.on_time(1e9) == []


@pytest.mark.parametrize("name", [ENGINE, FIRST, SECOND])
@pytest.mark.parametrize("code", [0, 1, 4, -9, 130])
def test_a_lost_child_is_restarted_alone_and_at_once(name: str, code: int) -> None:
    supervisor = started()
    actions = supervisor.on_exit(name, code, 100.0)
    assert deeds(actions) == []
    assert name in words(actions)
    assert supervisor.next_due_s() == 100.0
    assert deeds(supervisor.on_time(100.0)) == [Start(name)]
    assert supervisor.next_due_s() == NEVER
    assert supervisor.state is SupervisorState.RUNNING


@pytest.mark.parametrize("code", [2, 3])
@pytest.mark.parametrize("name", [ENGINE, FIRST])
def test_an_error_that_retrying_cannot_mend_ends_the_server(name: str, code: int) -> None:
    supervisor = started()
    actions = supervisor.on_exit(name, code, 5.0)
    assert Start(name) not in actions
    assert supervisor.state is SupervisorState.STOPPING
    assert f"exit code {code}" in words(actions)
    others = [child for child in (FIRST, SECOND) if child != name]
    assert deeds(actions) == [Send(child, TERM) for child in others]
    end_all(supervisor, {ENGINE, FIRST, SECOND} - {name})
    assert supervisor.exit_code == code


def end_all(supervisor: Supervisor, names: set[str]) -> None:
    for name in sorted(names, reverse=True):
        supervisor.on_exit(name, 0, 6.0)
    assert supervisor.state is SupervisorState.DONE


def fall(supervisor: Supervisor, name: str, times: int, now_s: float = 0.0, code: int = -11) -> float:
    """End a child and restart it as soon as it is due, so many times; return the time of the last end."""
    for number in range(times):
        supervisor.on_exit(name, code, now_s)
        if number + 1 < times:
            now_s = supervisor.next_due_s()
            assert deeds(supervisor.on_time(now_s)) == [Start(name)]
    return now_s


def test_an_engine_that_served_is_started_again_at_once_but_not_for_ever() -> None:
    supervisor = started()
    for number in range(MAX_RESTARTS):
        now_s = 10.0 * number
        supervisor.on_serving(ENGINE, now_s)
        supervisor.on_exit(ENGINE, -9, now_s)
        assert supervisor.next_due_s() == now_s
        assert deeds(supervisor.on_time(now_s)) == [Start(ENGINE)]
    supervisor.on_serving(ENGINE, 51.0)
    supervisor.on_exit(ENGINE, -9, 51.0)
    assert supervisor.state is SupervisorState.STOPPING


def test_delays_grow_and_the_sixth_loss_of_the_engine_within_the_window_ends_the_server() -> None:
    supervisor, now_s, delays = started(), 0.0, []
    for _ in range(MAX_RESTARTS):
        supervisor.on_exit(ENGINE, -11, now_s)
        delays.append(supervisor.next_due_s() - now_s)
        now_s = supervisor.next_due_s()
        assert deeds(supervisor.on_time(now_s)) == [Start(ENGINE)]
    assert delays == pytest.approx([0.0, SECOND_DELAY_S, 0.2, 0.4, 0.8])
    actions = supervisor.on_exit(ENGINE, -11, now_s)
    assert supervisor.state is SupervisorState.STOPPING
    assert "6 times within 60 s" in words(actions)
    assert "SIGSEGV" in words(actions)
    assert deeds(actions) == [Send(FIRST, TERM), Send(SECOND, TERM)]
    end_all(supervisor, {FIRST, SECOND})
    assert supervisor.exit_code == 128 + 11


def test_a_frontend_that_keeps_ending_is_tried_seldom_and_the_others_serve_on() -> None:
    supervisor = started()
    now_s = fall(supervisor, FIRST, MAX_RESTARTS)
    supervisor.on_time(now_s := supervisor.next_due_s())
    actions = supervisor.on_exit(FIRST, -11, now_s)
    assert "6 times within 60 s (killed by SIGSEGV): continuing without it" in words(actions)
    assert deeds(actions) == []
    assert supervisor.state is SupervisorState.RUNNING
    for _ in range(3):
        assert supervisor.next_due_s() == now_s + FAILING_DELAY_S
        now_s = supervisor.next_due_s()
        assert deeds(supervisor.on_time(now_s)) == [Start(FIRST)]
        actions = supervisor.on_exit(FIRST, -11, now_s)
        assert "retrying every" in words(actions)
        assert deeds(actions) == []


def test_a_failing_child_that_ran_for_a_minute_is_sound_again() -> None:
    supervisor = started()
    fall(supervisor, FIRST, MAX_RESTARTS + 1)
    supervisor.on_time(now_s := supervisor.next_due_s())
    assert supervisor.next_due_s() == now_s + RESTART_WINDOW_S
    assert FIRST in words(supervisor.on_time(supervisor.next_due_s()))
    assert supervisor.next_due_s() == NEVER
    now_s += 2 * RESTART_WINDOW_S
    supervisor.on_exit(FIRST, -11, now_s)
    assert supervisor.next_due_s() == now_s, "as at the first time"


def test_the_last_frontend_that_keeps_ending_ends_the_server() -> None:
    supervisor = started()
    now_s = fall(supervisor, FIRST, MAX_RESTARTS + 1)
    fall(supervisor, SECOND, MAX_RESTARTS + 1, now_s, code=-9)
    assert supervisor.state is SupervisorState.STOPPING
    end_all(supervisor, {ENGINE})
    assert supervisor.exit_code == 128 + 9


def test_a_failing_frontend_that_runs_for_the_moment_keeps_the_server_up() -> None:
    supervisor = started()
    fall(supervisor, FIRST, MAX_RESTARTS + 1)
    now_s = supervisor.next_due_s()
    assert deeds(supervisor.on_time(now_s)) == [Start(FIRST)]
    now_s = fall(supervisor, SECOND, MAX_RESTARTS + 1, now_s)
    assert supervisor.state is SupervisorState.RUNNING
    assert supervisor.on_exit(FIRST, 1, now_s)
    assert supervisor.state is SupervisorState.STOPPING, "nobody is left"


@pytest.mark.parametrize("code", [2, 3])
def test_a_frontend_that_ran_before_and_cannot_any_more_leaves_the_others_alone(code: int) -> None:
    supervisor = started()
    fall(supervisor, FIRST, 1)
    supervisor.on_time(now_s := supervisor.next_due_s())
    actions = supervisor.on_exit(FIRST, code, now_s)
    assert f"cannot run (exit code {code}): continuing without it" in words(actions)
    assert supervisor.state is SupervisorState.RUNNING
    assert supervisor.next_due_s() == now_s + FAILING_DELAY_S


def test_a_child_that_keeps_ending_with_code_0_does_not_end_the_server_with_success() -> None:
    supervisor, now_s = started(), 0.0
    for _ in range(MAX_RESTARTS):
        supervisor.on_exit(ENGINE, 0, now_s)
        now_s = supervisor.next_due_s()
        supervisor.on_time(now_s)
    supervisor.on_exit(ENGINE, 0, now_s)
    end_all(supervisor, {FIRST, SECOND})
    assert supervisor.exit_code == 1


def test_a_child_that_hangs_is_killed_once_and_its_successor_may_hang_again() -> None:
    supervisor = started()
    assert FIRST in words(supervisor.on_hung(FIRST))
    assert supervisor.on_hung(FIRST) == []
    supervisor.on_exit(FIRST, -9, 1.0)
    assert supervisor.on_hung(FIRST) == [], "it does not run"
    assert supervisor.on_time(1.0) == [Start(FIRST)]
    assert deeds(supervisor.on_hung(FIRST)) == [Send(FIRST, KILL)]


def test_losses_far_apart_never_end_the_server() -> None:
    supervisor, now_s = started(), 0.0
    for _ in range(30):
        supervisor.on_exit(ENGINE, -9, now_s)
        supervisor.on_time(supervisor.next_due_s())
        now_s += RESTART_WINDOW_S / MAX_RESTARTS + 1
    assert supervisor.state is SupervisorState.RUNNING


def test_losses_of_one_child_do_not_count_for_another() -> None:
    supervisor = started()
    for number in range(MAX_RESTARTS):
        for name in (ENGINE, FIRST, SECOND):
            supervisor.on_exit(name, 1, 10.0 * number)
        assert len(deeds(supervisor.on_time(10.0 * number + 5))) == 3
    assert supervisor.state is SupervisorState.RUNNING


def test_stop_ends_the_frontends_before_the_engine() -> None:
    supervisor = started()
    assert deeds(supervisor.stop(TERM, 10.0)) == [Send(FIRST, TERM), Send(SECOND, TERM)]
    assert supervisor.next_due_s() == 10.0 + STOP_TIMEOUT_S
    assert deeds(supervisor.on_exit(FIRST, 0, 11.0)) == []
    assert deeds(supervisor.on_exit(SECOND, 0, 12.0)) == [Send(ENGINE, TERM)]
    assert supervisor.next_due_s() == 12.0 + STOP_TIMEOUT_S
    assert supervisor.on_exit(ENGINE, 0, 13.0) == []
    assert (supervisor.state, supervisor.exit_code) == (SupervisorState.DONE, 0)
    assert supervisor.next_due_s() == NEVER


def test_stop_cancels_restarts() -> None:
    supervisor = started()
    supervisor.on_exit(FIRST, 1, 1.0)
    assert deeds(supervisor.stop(TERM, 1.0)) == [Send(SECOND, TERM)]
    assert deeds(supervisor.on_time(1.5)) == []


def test_a_child_lost_while_stopping_is_not_restarted() -> None:
    supervisor = started()
    supervisor.stop(TERM, 1.0)
    assert deeds(supervisor.on_exit(ENGINE, -9, 2.0)) == []
    supervisor.on_exit(FIRST, 0, 3.0)
    supervisor.on_exit(SECOND, 0, 3.0)
    assert (supervisor.state, supervisor.exit_code) == (SupervisorState.DONE, 0)


def test_a_stage_that_does_not_end_in_time_is_killed_and_the_next_still_drains() -> None:
    supervisor = started()
    supervisor.stop(TERM, 0.0)
    supervisor.on_exit(FIRST, 0, 1.0)
    actions = supervisor.on_time(STOP_TIMEOUT_S)
    assert deeds(actions) == [Send(SECOND, KILL)]
    assert SECOND in words(actions)
    assert deeds(supervisor.on_exit(SECOND, -9, STOP_TIMEOUT_S)) == [Send(ENGINE, TERM)]


def test_a_second_signal_ends_all_at_once_and_kills_what_is_left() -> None:
    supervisor = started()
    supervisor.stop(TERM, 0.0)
    supervisor.on_exit(FIRST, 0, 0.5)
    assert deeds(supervisor.stop(TERM, 1.0)) == [Send(ENGINE, TERM), Send(SECOND, TERM)]
    assert supervisor.state is SupervisorState.KILLING
    supervisor.on_exit(SECOND, 143, 1.1)
    assert deeds(supervisor.on_time(1.0 + KILL_GRACE_S)) == [Send(ENGINE, KILL)]
    supervisor.on_exit(ENGINE, -9, 2.1)
    assert (supervisor.state, supervisor.exit_code) == (SupervisorState.DONE, 128 + TERM)


def test_a_third_signal_changes_nothing() -> None:
    supervisor = started()
    supervisor.stop(TERM, 0.0)
    supervisor.stop(TERM, 1.0)
    assert supervisor.stop(TERM, 1.1) == []
    assert supervisor.state is SupervisorState.KILLING


def test_stop_with_nothing_running_is_done_at_once() -> None:
    supervisor = started()
    for name in (ENGINE, FIRST, SECOND):
        supervisor.on_exit(name, 1, 0.0)
    supervisor.stop(TERM, 0.01)
    assert supervisor.state is SupervisorState.DONE


def test_no_event_revives_a_server_that_is_done() -> None:
    supervisor = started()
    supervisor.stop(TERM, 0.0)
    for name in (FIRST, SECOND, ENGINE):
        supervisor.on_exit(name, 0, 1.0)
    assert supervisor.stop(TERM, 2.0) == []
    assert supervisor.on_time(1e9) == []
    assert (supervisor.state, supervisor.exit_code) == (SupervisorState.DONE, 0)


Event = Callable[[Supervisor], list[Action]]


def end_of(name: str, code: int = 1) -> Event:
    return lambda supervisor: supervisor.on_exit(name, code, 100.0)


def at(now_s: float) -> Event:
    return lambda supervisor: supervisor.on_time(now_s)


def hang_of(name: str) -> Event:
    return lambda supervisor: supervisor.on_hung(name)


def stop(supervisor: Supervisor) -> list[Action]:
    return supervisor.stop(TERM, 100.0)


def waiting() -> Supervisor:
    """FIRST waits for its second restart, due at 100.1 s."""
    supervisor = started()
    supervisor.on_exit(FIRST, 1, 100.0)
    supervisor.on_time(100.0)
    supervisor.on_exit(FIRST, 1, 100.0)
    return supervisor


def hung() -> Supervisor:
    """FIRST hung and was killed; its end has not been seen yet."""
    supervisor = started()
    supervisor.on_hung(FIRST)
    return supervisor


def failing() -> Supervisor:
    """FIRST fails; it was restarted for the seventh time, and is sound again at 160 s."""
    supervisor = started()
    for _ in range(MAX_RESTARTS + 1):
        supervisor.on_exit(FIRST, 1, 70.0)
        supervisor.on_time(100.0)
    return supervisor


def failing_alone() -> Supervisor:
    """FIRST fails and waits, SECOND runs on probation after as many ends."""
    supervisor = started()
    fall(supervisor, FIRST, MAX_RESTARTS + 1, 90.0)
    for _ in range(MAX_RESTARTS):
        supervisor.on_exit(SECOND, 1, 95.0)
        supervisor.on_time(99.0)
    return supervisor


def stopping() -> Supervisor:
    supervisor = started()
    supervisor.stop(TERM, 90.0)
    return supervisor


def stopping_engine() -> Supervisor:
    supervisor = stopping()
    supervisor.on_exit(FIRST, 0, 91.0)
    supervisor.on_exit(SECOND, 0, 91.0)
    return supervisor


def killing() -> Supervisor:
    supervisor = stopping()
    supervisor.stop(TERM, 91.0)
    return supervisor


def killing_last() -> Supervisor:
    supervisor = killing()
    supervisor.on_exit(FIRST, 143, 91.0)
    supervisor.on_exit(SECOND, 143, 91.0)
    return supervisor


def done() -> Supervisor:
    supervisor = stopping_engine()
    supervisor.on_exit(ENGINE, 0, 92.0)
    return supervisor


RUNNING, STOPPING, KILLING, DONE = SupervisorState
FIRST_STAGE = [Send(FIRST, TERM), Send(SECOND, TERM)]
TABLE = [
    (started, end_of(FIRST), RUNNING, []),
    (started, end_of(FIRST, 2), STOPPING, [Send(SECOND, TERM)]),
    (started, end_of(ENGINE), RUNNING, []),
    (started, end_of(ENGINE, 3), STOPPING, FIRST_STAGE),
    (started, stop, STOPPING, FIRST_STAGE),
    (started, at(1e9), RUNNING, []),
    (started, hang_of(FIRST), RUNNING, [Send(FIRST, KILL)]),
    (started, hang_of(ENGINE), RUNNING, [Send(ENGINE, KILL)]),
    (hung, hang_of(FIRST), RUNNING, []),
    (hung, hang_of(SECOND), RUNNING, [Send(SECOND, KILL)]),
    (hung, end_of(FIRST, -9), RUNNING, []),
    (hung, stop, STOPPING, FIRST_STAGE),
    (waiting, end_of(SECOND), RUNNING, []),
    (waiting, hang_of(FIRST), RUNNING, []),
    (waiting, at(100.0), RUNNING, []),
    (waiting, at(100.2), RUNNING, [Start(FIRST)]),
    (waiting, stop, STOPPING, [Send(SECOND, TERM)]),
    (failing, end_of(FIRST), RUNNING, []),
    (failing, end_of(FIRST, 2), RUNNING, []),
    (failing, end_of(SECOND), RUNNING, []),
    (failing, at(160.0), RUNNING, []),
    (failing, stop, STOPPING, FIRST_STAGE),
    (failing_alone, end_of(SECOND), STOPPING, [Send(ENGINE, TERM)]),
    (failing_alone, end_of(SECOND, 2), STOPPING, [Send(ENGINE, TERM)]),
    (failing_alone, at(200.0), RUNNING, [Start(FIRST)]),
    (stopping, end_of(FIRST), STOPPING, []),
    (stopping, end_of(ENGINE), STOPPING, []),
    (stopping, hang_of(FIRST), STOPPING, [Send(FIRST, KILL)]),
    (stopping, hang_of(ENGINE), STOPPING, [Send(ENGINE, KILL)]),
    (stopping, stop, KILLING, [Send(ENGINE, TERM), *FIRST_STAGE]),
    (stopping, at(90.0 + STOP_TIMEOUT_S), STOPPING, [Send(FIRST, KILL), Send(SECOND, KILL)]),
    (stopping_engine, end_of(ENGINE), DONE, []),
    (stopping_engine, stop, KILLING, [Send(ENGINE, TERM)]),
    (stopping_engine, at(91.0 + STOP_TIMEOUT_S), STOPPING, [Send(ENGINE, KILL)]),
    (killing, end_of(FIRST), KILLING, []),
    (killing, stop, KILLING, []),
    (killing, hang_of(FIRST), KILLING, []),
    (killing, at(92.0), KILLING, [Send(ENGINE, KILL), Send(FIRST, KILL), Send(SECOND, KILL)]),
    (killing_last, end_of(ENGINE), DONE, []),
    (killing_last, stop, KILLING, []),
    (killing_last, at(92.0), KILLING, [Send(ENGINE, KILL)]),
    (done, stop, DONE, []),
    (done, hang_of(FIRST), DONE, []),
    (done, at(1e9), DONE, []),
]


@pytest.mark.parametrize(("begin", "event", "state", "expected"), TABLE)
def test_every_state_answers_every_event_as_the_table_says(
    begin: Callable[[], Supervisor], event: Event, state: SupervisorState, expected: list[Action]
) -> None:
    supervisor = begin()
    assert deeds(event(supervisor)) == expected
    assert supervisor.state is state
