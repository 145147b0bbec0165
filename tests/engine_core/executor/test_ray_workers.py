"""What the engine makes of its launcher on Ray, without Ray."""

from __future__ import annotations

import importlib.util
import os
import socket
import tempfile
from pathlib import Path

import pytest
import zmq

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.errors import ConfigError, WorkerError
from splitserve.engine_core.executor.ray_workers import RayWorkers
from splitserve.engine_core.executor.workers import WorkersExecutor
from splitserve.engine_core.ipc.curve import ClientKeys
from splitserve.engine_core.ipc.launcher_messages import (
    FromLauncherMessage,
    RunWorkers,
    Seat,
    ToLauncherMessage,
    WorkerEnded,
    WorkersPlaced,
)
from splitserve.engine_core.ipc.line_link import LineLink
from splitserve.engine_core.ipc.transport import connect_engine

DEADLINE_MS = 20_000


def test_without_ray_the_extra_is_named_and_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = EngineConfig(model="m", executor="ray")
    executor = WorkersExecutor(config, ManualClock(), RayWorkers(config))
    with pytest.raises(ConfigError, match=r"pip install 'splitserve\[ray\]'"):
        executor.start()
    assert list(executor.sockets) == []
    executor.shutdown(1.0)


@pytest.mark.parametrize(
    ("python", "text"),
    [
        ("/bin/false", "the launcher on Ray was lost: exit code 1"),
        ("/no/such/python", "cannot start the worker: .*/no/such/python"),
    ],
)
def test_a_launcher_that_ends_or_cannot_start_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str, text: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("sys.executable", python)
    config = EngineConfig(model="m", executor="ray")
    executor = WorkersExecutor(config, ManualClock(), RayWorkers(config))

    def run() -> None:
        executor.start()
        poller = zmq.Poller()
        for source in executor.sockets:
            poller.register(source, zmq.POLLIN)
        while poller.poll(DEADLINE_MS):
            executor.receive()

    with pytest.raises(WorkerError, match=text):
        run()
    executor.shutdown(0.0)
    assert os.listdir(tmp_path) == []


def test_only_workers_with_the_keys_of_this_start_are_heard() -> None:
    config = EngineConfig(model="m", executor="ray", tensor_parallel_size=2)
    group = RayWorkers(config)
    ours, theirs = socket.socketpair()
    launcher: LineLink[ToLauncherMessage] = LineLink(theirs, ToLauncherMessage)
    group._link = LineLink(ours, FromLauncherMessage)
    with zmq.Context() as context, zmq.Context() as workers:
        group._context = context
        seats = [Seat("127.0.0.1 (ab)", 1), Seat("127.0.0.1 (cd)", 2)]
        launcher.send(WorkersPlaced("127.0.0.1", "cpu", "tcp://127.0.0.1:9", seats))
        group.attend()
        [command] = launcher.receive(wait=True)
        assert isinstance(command, RunWorkers)
        public, secret = (key.encode() for key in (command.public_key, command.secret_key))
        server = command.server_key.encode()
        address = group.router.address
        assert [(place.connect, place.rank) for place in command.places] == [(address, 0), (address, 1)]
        assert [place.rendezvous for place in command.places] == ["tcp://127.0.0.1:9"] * 2
        told = [group.configure(rank) for rank in range(2)]
        assert [(each.num_local_ranks, each.settings.device) for each in told] == [(1, "cpu"), (2, "cpu")]
        assert group.where(1) == "127.0.0.1 (cd)"
        stranger = connect_engine(workers, address, b"0", ClientKeys(*zmq.curve_keypair(), server))
        stranger.send(b"stranger")
        worker = connect_engine(workers, address, b"1", ClientKeys(public, secret, server))
        poller = zmq.Poller()
        for source in (group.router.socket, *group.sources):
            poller.register(source, zmq.POLLIN)
        heard: list[bytes] = []
        # Each is asked for its key once; the worker speaks after the stranger was refused.
        while not heard and poller.poll(DEADLINE_MS):
            group.attend()
            if group._guard.num_refused:
                worker.send(b"worker")
            heard += [message.identity for message in group.router.receive(9)]
        assert set(heard) == {b"1"}
        stranger.close(linger=0)
        worker.close(linger=0)
        launcher.close()
        group.end(0.0)


class OneByOne(LineLink[FromLauncherMessage]):
    """A launcher whose messages arrive each after the one before was taken."""

    def __init__(self, *messages: FromLauncherMessage) -> None:
        ours, self._theirs = socket.socketpair()
        super().__init__(ours, FromLauncherMessage)
        self.left = list(messages)
        self._theirs.send(b"always readable")

    def receive(self, *, wait: bool) -> list[FromLauncherMessage]:
        return [self.left.pop(0)]

    def close(self) -> None:
        super().close()
        self._theirs.close()


def group_of_three_that_ends(*ranks: int) -> tuple[RayWorkers, OneByOne]:
    """A group whose workers end in this order."""
    group = RayWorkers(EngineConfig(model="m", executor="ray", tensor_parallel_size=3))
    group._nodes = ["a", "b", "c"]
    group._link = link = OneByOne(*(WorkerEnded(rank, f"exit code {rank}") for rank in ranks))
    return group, link


def test_who_asks_how_a_rank_ended_hears_it_though_others_end_before() -> None:
    group, link = group_of_three_that_ends(2, 0, 1)
    assert group.how_it_ended(0, DEADLINE_MS / 1000) == "exit code 0"
    assert len(link.left) == 1, "nobody waits for more than was asked"
    group.end(0.0)


def test_all_ranks_get_the_time_to_end_whichever_ends_first() -> None:
    group, link = group_of_three_that_ends(2, 1, 0)
    group.end(DEADLINE_MS / 1000)
    assert link.left == []
