"""One engine-core and its api-frontends as child processes: start, watch, announce and end them."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import sys
from typing import NamedTuple

import zmq

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.errors import EXIT_FAILED, ConfigError
from splitserve.engine_core.ipc.addresses import make_private_directory
from splitserve.engine_core.ipc.connection_counts import NOT_SERVING, ConnectionCounts
from splitserve.engine_core.ipc.messages import Ready
from splitserve.engine_core.launcher.banner import banner
from splitserve.engine_core.launcher.listener import bind_tcp, bind_unix
from splitserve.engine_core.launcher.readiness import ProbeStage, ReadinessProbe
from splitserve.engine_core.launcher.supervisor import (
    Action,
    ChildSpec,
    Say,
    Send,
    Start,
    Supervisor,
    SupervisorState,
)
from splitserve.engine_core.process.children import Child, python_module
from splitserve.engine_core.process.runtime_directory import leave_runtime_directory, runtime_directory
from splitserve.engine_core.process.signals import SignalInbox

FRONTEND_STAGE, ENGINE_STAGE = 0, 1
# In addition to the time for running requests: closing sockets, ending the worker.
STOP_SLACK_S = 10.0
# How often to check whether a child has ended if the system has no pidfd.
NO_PIDFD_POLL_S = 0.2
ENGINE_NAME = "engine-core"


class LaunchOptions(NamedTuple):
    """What `splitserve serve` was asked for.

    Attributes:
        model: directory or hub id, "" for the demo model.
        host, port: where to listen; `uds` instead is the path of a Unix socket.
        num_frontends: api-frontend processes.
        drain_timeout_s: time that running requests get to finish.
        engine_flags, frontend_flags: command-line words to pass on.
        scheme: "http", or "https" if the frontends have a certificate.
        has_api_key: clients must send a key.
    """

    model: str
    host: str
    port: int
    uds: str
    num_frontends: int
    drain_timeout_s: float
    engine_flags: tuple[str, ...]
    frontend_flags: tuple[str, ...]
    scheme: str
    has_api_key: bool


class Launcher:
    """The processes of one server; owned by the main thread of `splitserve serve`."""

    def __init__(self, options: LaunchOptions, clock: Clock) -> None:
        """Bind the listening socket; no process is started yet.

        Raises:
            ConfigError: the address cannot be used, or the directory for sockets is not private.
        """
        self._options = options
        self._clock = clock
        self._begin_s = clock.monotonic()
        self._counts = ConnectionCounts.create(options.num_frontends)
        # The engine creates it, so it is also removed if this process is killed.
        self._directory = f"{runtime_directory()}/serve-{os.getpid()}"
        make_private_directory(runtime_directory())
        try:
            self._listener = bind_unix(options.uds) if options.uds else bind_tcp(options.host, options.port)
        except ConfigError:
            leave_runtime_directory(self._directory)
            raise
        self._address = f"ipc://{self._directory}/engine.sock"
        self._numbers = {f"api-frontend {n}": n for n in range(1, options.num_frontends + 1)}
        self._supervisor = Supervisor(self._specs())
        self._children: dict[str, Child] = {}
        self._probe: ReadinessProbe | None = None
        self._signals = SignalInbox()

    def run(self) -> int:
        """Run until a signal or a failure ends it; return the exit code."""
        self._say(f"listening on {self._place()}")
        try:
            self._act(self._supervisor.begin())
            self._begin_probe()
            while self._supervisor.state is not SupervisorState.DONE:
                self._round()
            return self._supervisor.exit_code
        finally:
            self._close()

    def _specs(self) -> list[ChildSpec]:
        timeout_s = self._options.drain_timeout_s + STOP_SLACK_S
        frontends = [ChildSpec(name, FRONTEND_STAGE, timeout_s) for name in self._numbers]
        return [ChildSpec(ENGINE_NAME, ENGINE_STAGE, timeout_s), *frontends]

    def _round(self) -> None:
        ready = self._wait()
        if self._signals.fileno() in ready:
            for number in self._signals.take():
                self._on_signal(number)
        for name, child in list(self._children.items()):
            code = child.poll() if child.pidfd in ready or child.pidfd < 0 else None
            if code is not None:
                self._on_exit(name, child, code)
        self._attend_probe()
        self._act(self._supervisor.on_time(self._clock.monotonic()))

    def _wait(self) -> dict[zmq.Socket | int, int]:
        # Rebuilt each time: rounds are rare, and children and probes come and go.
        poller = zmq.Poller()
        poller.register(self._signals.fileno(), zmq.POLLIN)
        for child in self._children.values():
            if child.pidfd >= 0:
                poller.register(child.pidfd, zmq.POLLIN)
        for source in self._probe.sources if self._probe is not None else ():
            poller.register(source, zmq.POLLIN)
        return dict(poller.poll(self._poll_timeout_ms()))

    def _poll_timeout_ms(self) -> int | None:
        due_s = self._supervisor.next_due_s()
        if self._probe is not None:
            due_s = min(due_s, self._probe.next_due_s())
        due_s -= self._clock.monotonic()
        if any(child.pidfd < 0 for child in self._children.values()):
            due_s = min(due_s, NO_PIDFD_POLL_S)
        return None if due_s == math.inf else max(0, math.ceil(due_s * 1000))

    def _on_signal(self, number: signal.Signals) -> None:
        if self._supervisor.state is SupervisorState.RUNNING:
            self._say(f"{number.name}: finishing running requests, a second signal ends at once")
        self._act(self._supervisor.stop(number, self._clock.monotonic()))
        self._stop_accepting()

    def _on_exit(self, name: str, child: Child, code: int) -> None:
        del self._children[name]
        child.close()
        if name in self._numbers:
            # Otherwise the other frontends would leave connections to it.
            self._counts[self._numbers[name]] = NOT_SERVING
        self._act(self._supervisor.on_exit(name, code, self._clock.monotonic()))
        if self._supervisor.state is not SupervisorState.RUNNING:
            self._stop_accepting()

    def _stop_accepting(self) -> None:
        """Close our copy of the listening socket; once the frontends close theirs, nobody can connect."""
        self._listener.close()
        self._end_probe()

    def _act(self, actions: list[Action]) -> None:
        not_started: list[str] = []
        for action in actions:
            match action:
                case Say(text=text):
                    self._say(text)
                case Send(name=name, number=number):
                    self._children[name].signal(number)
                case Start(name=name):
                    if not self._start(name):
                        not_started.append(name)
        # Last, since the supervisor considers every child running that it asked to start.
        for name in not_started:
            self._act(self._supervisor.on_exit(name, EXIT_FAILED, self._clock.monotonic()))

    def _start(self, name: str) -> bool:
        self._say(f"starting {name}")
        number = self._numbers.get(name)
        try:
            child = Child(
                self._engine_argv() if number is None else self._frontend_argv(number),
                # Not SIGKILL: if this process is killed, they shut down in order and leave no files behind.
                death_signal=signal.SIGTERM,
                pass_fds=() if number is None else (self._listener.fileno(), self._counts.fd),
            )
        except OSError as error:
            # Probably out of memory or processes: the others continue, and it counts as a crash of the child.
            self._say(f"cannot start {name}: {error}")
            return False
        self._children[name] = child
        return True

    def _engine_argv(self) -> list[str]:
        options = self._options
        return [
            *python_module("splitserve.engine_core.cli"),
            *(f"--model={options.model}", f"--listen={self._address}"),
            *options.engine_flags,
        ]

    def _frontend_argv(self, number: int) -> list[str]:
        return [
            *python_module("splitserve.frontend.cli"),
            *(
                f"--engine={self._address}",
                f"--fd={self._listener.fileno()}",
                f"--launch-dir={self._directory}",
            ),
            *(f"--launch-number={number}", f"--launch-fd={self._counts.fd}"),
            *self._options.frontend_flags,
        ]

    def _begin_probe(self) -> None:
        listener = self._listener if self._options.scheme == "http" else None
        num_frontends = self._options.num_frontends
        self._probe = ReadinessProbe(
            self._address, num_frontends, listener, self._clock, self._on_engine_ready
        )

    def _attend_probe(self) -> None:
        if self._probe is None:
            return
        self._probe.on_readable()
        self._probe.on_time()
        if self._probe.stage is ProbeStage.DONE and self._probe.engine is not None:
            self._announce(self._probe.engine)
            self._end_probe()

    def _end_probe(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None

    def _on_engine_ready(self, engine: Ready) -> None:
        model = engine.model
        weights = "" if model.quantization == "none" else f" with {model.quantization} weights"
        self._say(
            f"engine ready: {model.architecture}, {model.num_params / 1e6:.1f}M parameters, "
            f"{model.dtype}{weights}, {model.max_model_len} tokens of context"
        )

    def _announce(self, engine: Ready) -> None:
        took_s = self._clock.monotonic() - self._begin_s
        options = self._options
        text = banner(
            engine, self._place(), options.uds, self._address, took_s, has_api_key=options.has_api_key
        )
        with contextlib.suppress(OSError):
            print(text, flush=True)

    def _place(self) -> str:
        if self._options.uds:
            return f"unix:{self._options.uds}"
        host, port = self._listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return f"{self._options.scheme}://{shown}:{port}"

    def _say(self, text: str) -> None:
        took_s = self._clock.monotonic() - self._begin_s
        with contextlib.suppress(OSError):
            print(f"[{took_s:7.2f} s] {text}", file=sys.stderr, flush=True)

    def _close(self) -> None:
        for child in self._children.values():
            # Only after a bug of our own: in an orderly shutdown all have ended by now.
            child.signal(signal.SIGKILL)
            child.wait(STOP_SLACK_S)
            child.close()
        self._stop_accepting()
        self._signals.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            if self._options.uds:
                os.unlink(self._options.uds)
        leave_runtime_directory(self._directory)
        self._say("ended")
