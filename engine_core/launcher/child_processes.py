"""The children of `splitserve serve`: their command lines, what they share, and whose loop stands still."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence
from typing import NamedTuple

import zmq

from splitserve.engine_core.ipc.connection_counts import NOT_SERVING, UNUSED, ConnectionCounts
from splitserve.engine_core.launcher.spare import SpareEngine
from splitserve.engine_core.process.children import Child, python_module, reap_adopted
from splitserve.engine_core.process.heartbeats import HeartbeatPage, HeartbeatWatch

ENGINE_NAME = "engine-core"
ENGINE_SLOT = 0
# From the moment a prepared process is told to serve until its loop turns.
SPARE_SILENCE_S = 2.0


class ChildFlags(NamedTuple):
    """What the children are told.

    Attributes:
        address: of the engine.
        directory: private, where the frontends find each other.
        engine, frontend: further command-line words of each kind.
    """

    address: str
    directory: str
    engine: tuple[str, ...]
    frontend: tuple[str, ...]


def frontend_name(number: int) -> str:
    """Return the name of a frontend, numbered from 1 on."""
    return f"api-frontend {number}"


class ChildProcesses:
    """Starts, signals and observes them by name; belongs to the launcher's main thread.

    Attributes:
        spare: what becomes the engine when it is to be started.
    """

    def __init__(self, num_slots: int, listener: socket.socket, flags: ChildFlags) -> None:
        """Create what they will share; no process is started yet.

        Args:
            num_slots: numbers for frontends, from 1 on, also for those that replace others.
            listener: shared by the frontends; the caller closes it.
            flags: for the command lines.

        Raises:
            ConfigError: the system is out of memory or file descriptors.
        """
        self._flags = flags
        self._listener = listener
        self._counts = ConnectionCounts.create(num_slots)
        for number in range(1, num_slots + 1):
            self._counts[number] = UNUSED
        self._page = HeartbeatPage.create(num_slots + 1)
        self._watch = HeartbeatWatch(self._page)
        self._slots = {frontend_name(slot): slot for slot in range(1, num_slots + 1)}
        self._slots[ENGINE_NAME] = ENGINE_SLOT
        self._names = {slot: name for name, slot in self._slots.items()}
        self._children: dict[str, Child] = {}
        self._serving: set[str] = set()
        self.spare = SpareEngine(lambda fd: self._start_engine(f"--standby-fd={fd}", fds=(fd,)))

    @property
    def descriptors(self) -> list[int]:
        """Descriptors that become readable when a child ends."""
        return [child.pidfd for child in self._children.values() if child.pidfd >= 0]

    @property
    def must_be_polled(self) -> bool:
        """Whether some child has no descriptor, since the system has no pidfd."""
        return any(child.pidfd < 0 for child in self._children.values())

    def start(self, name: str) -> None:
        """Start a child; a spare engine, if there is one, becomes the engine.

        Raises:
            OSError: the system refuses.
        """
        slot = self._slots[name]
        self._watch.forget(slot)
        self._serving.discard(name)
        if slot == ENGINE_SLOT:
            self._children[name] = self._take_spare() or self._start_engine()
        else:
            self._counts[slot] = NOT_SERVING
            shared = (self._listener.fileno(), self._counts.fd)
            self._children[name] = self._start_child(self._frontend_argv(slot), *shared)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a child a signal."""
        self._children[name].signal(number)

    def take_ended(self, ready: dict[zmq.Socket | int, int]) -> list[tuple[str, int]]:
        """Forget the children that have ended; return their names and exit codes, -N after signal N.

        Args:
            ready: what polling found.
        """
        ended: list[tuple[str, int]] = []
        for name, child in list(self._children.items()):
            code = child.poll() if child.pidfd in ready or child.pidfd < 0 else None
            if code is None:
                continue
            ended.append((name, code))
            child.close()
            del self._children[name]
            self._watch.forget(self._slots[name])
            if name != ENGINE_NAME:
                # Otherwise the other frontends would leave connections to it.
                self._counts[self._slots[name]] = UNUSED
        return ended

    def expect(self, name: str) -> None:
        """Let a frontend that ended count as one that is down, since it is to be started again."""
        if name != ENGINE_NAME:
            self._counts[self._slots[name]] = NOT_SERVING

    def take_serving(self) -> list[str]:
        """Return the children that have begun to serve since the last call."""
        found = [
            name
            for name in self._children
            if name not in self._serving and self._page.serves(self._slots[name])
        ]
        self._serving.update(found)
        return found

    def hung(self, now_s: float) -> list[str]:
        """Return the children whose loops stand still."""
        return [self._names[slot] for slot in self._watch.look(now_s) if self._names[slot] in self._children]

    def reap_others(self) -> None:
        """Let go of workers whose engine died before them, if this is the first process of a container."""
        reap_adopted({*self.spare.pids, *(child.pid for child in self._children.values())})

    def kill_all(self, timeout_s: float) -> None:
        """Kill and reap whatever still runs."""
        self.spare.end()
        for child in self._children.values():
            child.signal(signal.SIGKILL)
        for child in self._children.values():
            child.wait(timeout_s)
            child.close()
        self._children.clear()

    def _take_spare(self) -> Child | None:
        if self.spare.is_prepared:
            # It has only to wake up; if it cannot, because somebody has stopped it, it hangs.
            self._watch.expect(ENGINE_SLOT, SPARE_SILENCE_S)
        spare = self.spare.take()
        if spare is None:
            self._watch.forget(ENGINE_SLOT)
        return spare

    def _start_engine(self, *words: str, fds: Sequence[int] = ()) -> Child:
        flags = self._flags
        shared = (f"--listen={flags.address}", f"--heartbeat-fd={self._page.fd}", *words)
        return self._start_child([*python_module("splitserve.engine_core.cli"), *shared, *flags.engine], *fds)

    def _start_child(self, argv: Sequence[str], *fds: int) -> Child:
        # Not SIGKILL: if this process is killed, they shut down in order and leave no files behind.
        return Child(argv, death_signal=signal.SIGTERM, pass_fds=(self._page.fd, *fds))

    def _frontend_argv(self, number: int) -> Sequence[str]:
        flags = self._flags
        shared = (
            f"--engine={flags.address}",
            f"--fd={self._listener.fileno()}",
            f"--launch-dir={flags.directory}",
            f"--launch-number={number}",
            f"--launch-fd={self._counts.fd}",
            f"--heartbeat-fd={self._page.fd}",
        )
        return [*python_module("splitserve.frontend.cli"), *shared, *flags.frontend]
