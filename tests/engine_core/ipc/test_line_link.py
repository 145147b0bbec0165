"""Messages between a process and its child, whole or in pieces, until one of them is gone."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from splitserve.engine_core.ipc.launcher_messages import (
    FromLauncherMessage,
    LaunchFailed,
    Seat,
    ToLauncherMessage,
    WorkerEnded,
    WorkersPlaced,
)
from splitserve.engine_core.ipc.line_link import LineLink

Pair = tuple[LineLink[FromLauncherMessage], LineLink[ToLauncherMessage], socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    engine: LineLink[FromLauncherMessage] = LineLink(ours, FromLauncherMessage)
    launcher: LineLink[ToLauncherMessage] = LineLink(theirs, ToLauncherMessage)
    yield engine, launcher, theirs
    engine.close()
    launcher.close()


def test_messages_arrive_in_order_and_as_they_were(pair: Pair) -> None:
    engine, launcher, _ = pair
    sent = [
        WorkersPlaced("10.0.0.1", "cpu", "tcp://10.0.0.2:5", [Seat("10.0.0.2 (ab)", 1)]),
        WorkerEnded(3, "exit code 4"),
        LaunchFailed("worker_failed", "two\nlines and a \u2028"),
    ]
    for message in sent:
        launcher.send(message)
    assert engine.receive(wait=True) == sent
    assert engine.receive(wait=False) == []


def test_a_message_in_pieces_is_waited_for(pair: Pair) -> None:
    engine, _, theirs = pair
    theirs.sendall(b'[1,3,"exit')
    assert engine.receive(wait=False) == []
    theirs.sendall(b' code 4"]\n')
    assert engine.receive(wait=True) == [WorkerEnded(3, "exit code 4")]


def test_the_end_of_the_other_process_shows(pair: Pair) -> None:
    engine, launcher, _ = pair
    launcher.send(WorkerEnded(0, "exit code 0"))
    launcher.close()
    assert engine.receive(wait=True) == [WorkerEnded(0, "exit code 0")]
    assert engine.receive(wait=True) == []
    assert not engine.is_open
    engine.send(WorkerEnded(0, ""))
