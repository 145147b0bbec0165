"""One engine-core and its api-frontends as child processes: start, watch, announce and end them."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import sys

import zmq

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.errors import EXIT_FAILED, ConfigError
from splitserve.engine_core.ipc.addresses import make_private_directory
from splitserve.engine_core.kept.folder import end_kept_workers
from splitserve.engine_core.launcher.announcer import Announcer
from splitserve.engine_core.launcher.child_processes import (
    ENGINE_NAME,
    ChildFlags,
    ChildProcesses,
    frontend_name,
)
from splitserve.engine_core.launcher.child_state import Action, ChildSpec, Prepare, Say, Send, Start
from splitserve.engine_core.launcher.listener import bind_tcp, bind_unix
from splitserve.engine_core.launcher.options import LaunchOptions
from splitserve.engine_core.launcher.spare import Prepared
from splitserve.engine_core.launcher.supervisor import Supervisor, SupervisorState
from splitserve.engine_core.process.heartbeats import LOOK_INTERVAL_S
from splitserve.engine_core.process.runtime_directory import (
    leave_runtime_directory,
    remove_orphans,
    runtime_directory,
)
from splitserve.engine_core.process.server_record import RecordFile
from splitserve.engine_core.process.signals import SignalInbox
from splitserve.engine_core.process.terminal import Terminal

FRONTEND_STAGE, ENGINE_STAGE = 0, 1
# In addition to the time for running requests: closing sockets, ending the worker.
STOP_SLACK_S = 10.0
# How often to look whether a child serves that a rolling restart waits for.
ROLL_LOOK_S = 0.05
# How often to check whether a child has ended if the system has no pidfd.
NO_PIDFD_POLL_S = 0.2


class Launcher:
    """The processes of one server; owned by the main thread of `splitserve serve`."""

    def __init__(self, options: LaunchOptions, clock: Clock) -> None:
        """Bind the listening socket; no process is started yet.

        Raises:
            ConfigError: the address cannot be used, or the directory for sockets is not private or full.
        """
        self._options = options
        self._clock = clock
        self._begin_s = clock.monotonic()
        # If this process is killed, the last of its children to end removes it; if they were killed too, or
        # had hardly begun, the next server to start does.
        self._directory = f"{runtime_directory()}/serve-{os.getpid()}"
        remove_orphans()
        make_private_directory(runtime_directory())
        try:
            self._listener = bind_unix(options.uds) if options.uds else bind_tcp(options.host, options.port)
        except ConfigError:
            leave_runtime_directory(self._directory)
            raise
        self._address = f"ipc://{self._directory}/engine.sock"
        flags = ChildFlags(
            self._address,
            self._directory,
            (f"--model={options.model}", *options.engine_flags),
            self._frontend_flags(),
        )
        # Frontends that were replaced may finish their streams while they are replaced once more.
        self._num_slots = 2 * options.num_frontends + 2
        self._children = ChildProcesses(self._num_slots, self._listener, flags)
        self._supervisor = Supervisor(self._specs())
        self._look_due_s = self._begin_s
        self._announcer = Announcer(
            options, self._listener, self._address, clock, self._record_file(), self._say
        )
        self._terminal = Terminal()
        self._ignores_hang_up = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._signals = SignalInbox(takes_ignored=True)

    def run(self) -> int:
        """Run until a signal or a failure ends it; return the exit code."""
        self._say(f"listening on {self._announcer.place}")
        try:
            self._act(self._supervisor.begin())
            self._announcer.begin()
            while self._supervisor.state is not SupervisorState.DONE:
                self._round()
            return self._supervisor.exit_code
        finally:
            self._close()

    def _record_file(self) -> RecordFile:
        make_private_directory(self._directory)
        try:
            return RecordFile(self._directory)
        except OSError as error:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise ConfigError(f"cannot write to {self._directory}: {error.strerror}") from None

    def _frontend_flags(self) -> tuple[str, ...]:
        stores = self._options.own_stores.items()
        places = (f"{flag}={os.path.join(self._directory, name)}" for flag, name in stores)
        return (*self._options.frontend_flags, *places)

    def _specs(self) -> list[ChildSpec]:
        timeout_s = self._options.drain_timeout_s + STOP_SLACK_S
        frontends = [
            ChildSpec(frontend_name(n), FRONTEND_STAGE, timeout_s, is_spare=n > self._options.num_frontends)
            for n in range(1, self._num_slots + 1)
        ]
        return [ChildSpec(ENGINE_NAME, ENGINE_STAGE, timeout_s), *frontends]

    def _round(self) -> None:
        ready = self._wait()
        if self._signals.fileno() in ready:
            for number in self._signals.take():
                self._on_signal(number)
        for name, code in self._children.take_ended(ready):
            self._on_exit(name, code)
        self._look_at_hearts()
        self._on_spare(self._children.spare.run(self._clock.monotonic()))
        self._announcer.run()
        self._announcer.tell_rolls(self._supervisor.rolling)
        self._act(self._supervisor.on_time(self._clock.monotonic()))

    def _wait(self) -> dict[zmq.Socket | int, int]:
        # Rebuilt each time: rounds are rare, and children and probes come and go.
        poller = zmq.Poller()
        poller.register(self._signals.fileno(), zmq.POLLIN)
        for descriptor in (*self._children.descriptors, *self._children.spare.sources):
            poller.register(descriptor, zmq.POLLIN)
        for source in self._announcer.sources:
            poller.register(source, zmq.POLLIN)
        return dict(poller.poll(self._poll_timeout_ms()))

    def _poll_timeout_ms(self) -> int:
        due_s = min(self._supervisor.next_due_s(), self._children.spare.next_due_s())
        due_s = min(due_s, self._look_due_s, self._announcer.next_due_s())
        due_s -= self._clock.monotonic()
        if self._children.must_be_polled:
            due_s = min(due_s, NO_PIDFD_POLL_S)
        return max(0, math.ceil(due_s * 1000))

    def _on_signal(self, number: signal.Signals) -> None:
        if number is signal.SIGHUP and not self._terminal.hung_up(self._clock.monotonic()):
            self._act(self._supervisor.roll(self._clock.monotonic()))
            return
        if number is signal.SIGHUP and self._ignores_hang_up:
            return
        if self._supervisor.state is SupervisorState.RUNNING:
            self._say(f"{number.name}: finishing running requests, a second signal ends at once")
        self._act(self._supervisor.stop(number, self._clock.monotonic()))
        self._stop_accepting()

    def _look_at_hearts(self) -> None:
        now_s = self._clock.monotonic()
        if now_s < self._look_due_s:
            return
        self._terminal.look(now_s)
        self._children.reap_others()
        for name in self._children.hung(now_s):
            self._act(self._supervisor.on_hung(name))
        for name in self._children.take_serving():
            self._act(self._supervisor.on_serving(name, now_s))
            if name == ENGINE_NAME and self._supervisor.state is SupervisorState.RUNNING:
                self._children.spare.on_engine_serves(now_s)
        self._look_due_s = now_s + (ROLL_LOOK_S if self._supervisor.is_rolling else LOOK_INTERVAL_S)

    def _on_exit(self, name: str, code: int) -> None:
        self._act(self._supervisor.on_exit(name, code, self._clock.monotonic()))
        if self._supervisor.is_wanted(name):
            self._children.expect(name)
        if self._supervisor.state is not SupervisorState.RUNNING:
            self._stop_accepting()

    def _on_spare(self, prepared: Prepared | None) -> None:
        if prepared is not None:
            self._act(self._supervisor.rolling.on_prepared(prepared.failure, self._clock.monotonic()))

    def _stop_accepting(self) -> None:
        """Close our copy of the listening socket; once the frontends close theirs, nobody can connect.

        Nor is a spare engine needed from then on.
        """
        self._children.spare.end()
        self._listener.close()
        self._announcer.end()

    def _act(self, actions: list[Action]) -> None:
        not_started: list[str] = []
        for action in actions:
            match action:
                case Say(text=text):
                    self._say(text)
                case Send(name=name, number=number):
                    self._children.signal(name, number)
                case Prepare():
                    self._on_spare(self._children.spare.renew(self._clock.monotonic()))
                case Start(name=name):
                    if not self._start(name):
                        not_started.append(name)
        # Last, since the supervisor considers every child running that it asked to start.
        for name in not_started:
            self._act(self._supervisor.on_exit(name, EXIT_FAILED, self._clock.monotonic()))

    def _start(self, name: str) -> bool:
        self._say(f"starting {name}")
        try:
            self._children.start(name)
        except OSError as error:
            # Probably out of memory or processes: the others continue, and it counts as a crash of the child.
            self._say(f"cannot start {name}: {error}")
            return False
        return True

    def _say(self, text: str) -> None:
        took_s = self._clock.monotonic() - self._begin_s
        with contextlib.suppress(OSError):
            print(f"[{took_s:7.2f} s] {text}", file=sys.stderr, flush=True)

    def _close(self) -> None:
        # Only after a bug of our own: in an orderly shutdown all have ended by now.
        self._children.kill_all(STOP_SLACK_S)
        self._stop_accepting()
        self._announcer.leave()
        self._signals.close()
        # They wait for a successor of an engine that ended last in a bad way.
        end_kept_workers(self._address)
        shutil.rmtree(self._directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            if self._options.uds:
                os.unlink(self._options.uds)
        leave_runtime_directory(self._directory)
        self._say("ended")
