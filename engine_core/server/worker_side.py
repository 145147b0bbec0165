"""What passes between the loop and the workers: their start, steps, outputs, their loss and their return.

state        by the workers' messages                        steps are planned
starting     startup, until the KV cache is there            no
serving      outputs are applied; a loss: recovering         as many as may be in flight
recovering   recovery, until the KV cache is there again     no
asleep       rest, until wake_up()                           no
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import zmq

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.errors import ConfigError, EngineUnavailableError, ModelLoadError, WorkerError
from splitserve.engine_core.executor.base import Executor
from splitserve.engine_core.ipc.worker_messages import (
    AdapterLoaded,
    FromWorkerMessage,
    GrammarCompiled,
    ModelRunnerOutput,
)
from splitserve.engine_core.process.kill_points import reach
from splitserve.engine_core.server.absence.recovery import Recovery
from splitserve.engine_core.server.absence.rest import Rest
from splitserve.engine_core.server.frontend_handler import FrontendHandler
from splitserve.engine_core.server.start_watch import LOOK_S, StartWatch
from splitserve.engine_core.server.startup import Loaded, Startup
from splitserve.engine_core.server.step_watch import StepWatch


class WorkerSide:
    """The executor and what is done with it; owned by the busy loop's thread.

    Args:
        executor: not started yet.
        startup: starts it.
        handler: told of losses and returns.
        clock: that of the engine.
        serve: makes the engine once the first workers are ready.
        on_step: called when a step was submitted.
    """

    def __init__(
        self,
        executor: Executor,
        startup: Startup,
        handler: FrontendHandler,
        clock: Clock,
        serve: Callable[[Loaded], EngineCore],
        on_step: Callable[[], None],
    ) -> None:
        self._executor = executor
        self._startup = startup
        self._clock = clock
        self._serve = serve
        self._on_step = on_step
        self._recovery = Recovery(startup, handler, clock)
        self._rest = Rest(startup, handler, self._recovery)
        self._start_watch = StartWatch(startup.longest_silence_s, clock)
        self._step_watch = StepWatch(executor, clock)
        self._polled: tuple[zmq.Socket | int, ...] = ()
        self._engine: EngineCore | None = None

    @property
    def is_recovering(self) -> bool:
        """Whether no step is planned until workers are there again."""
        return self._recovery.is_active or self._rest.is_asleep

    def sleep(self, keeps_weights: bool, done: Callable[[], None]) -> None:
        """Give up memory until wake_up(); see Rest.sleep.

        Raises:
            EngineUnavailableError: the workers are being started, or cannot do this.
            WorkerError: a worker is gone.
        """
        if self._engine is None:
            raise EngineUnavailableError("the engine is loading")
        self._rest.sleep(self._engine, keeps_weights, done)

    def wake_up(self) -> None:
        """Take the memory again, if it was given up."""
        self._rest.wake_up()
        self._start_watch.heard()

    def register(self, poller: zmq.Poller) -> None:
        """Let the poller wait for what the executor waits for now."""
        wanted = tuple(self._executor.sockets)
        if wanted == self._polled:
            return
        for source in self._polled:
            poller.unregister(source)
        for source in wanted:
            poller.register(source, zmq.POLLIN)
        self._polled = wanted

    def next_due_s(self) -> float:
        """Return the time by which attend() has to be called again; inf when nothing is due."""
        if self._rest.is_asleep:
            due_s = math.inf
        elif self._engine is None or self._recovery.is_active:
            due_s = self._clock.monotonic() + LOOK_S
        else:
            due_s = self._step_watch.next_due_s(self._engine)
        timeout_s = self._executor.poll_timeout_s()
        return due_s if timeout_s is None else min(due_s, self._clock.monotonic() + timeout_s)

    def attend(self, ready: Mapping[zmq.Socket | int, int]) -> None:
        """Take what the workers sent, and plan steps; once per round.

        Raises:
            WorkerError: the first workers were lost before they were ready, or later ones too often.
            ModelLoadError: workers refused the checkpoint.
            ConfigError: the first workers refused the configuration.
        """
        try:
            self._attend(ready)
        except (WorkerError, ConfigError, ModelLoadError) as fault:
            if self._engine is None:
                raise
            if not self._rest.lose(fault):
                self._recovery.begin(self._engine, fault)
            self._start_watch.heard()

    def stalled(self) -> str:
        """Say why no step can end at the moment; "" if one can, or none is meant to."""
        if self._engine is None or self._rest.is_asleep:
            return ""
        if self._recovery.is_active:
            return f"lost its workers and is {self._startup.stage}"
        return self._step_watch.stalled(self._engine)

    def _attend(self, ready: Mapping[zmq.Socket | int, int]) -> None:
        if self._is_due(ready):
            for message in self._executor.receive():
                self._on_message(message)
        if self._rest.is_asleep:
            return
        if self._recovery.is_active:
            self._recovery.look(self._executor.stopped())
        if self._engine is None or self._recovery.is_active:
            self._start_watch.look(self._startup.stage)
        else:
            self._submit_steps(self._engine)
            self._step_watch.look(self._engine)

    def _is_due(self, ready: Mapping[zmq.Socket | int, int]) -> bool:
        if any(source in ready for source in self._polled):
            return True
        timeout_s = self._executor.poll_timeout_s()
        return timeout_s is not None and timeout_s <= 0

    def _on_message(self, message: FromWorkerMessage) -> None:
        if self._engine is None:
            self._start_watch.heard()
            loaded = self._startup.on_message(message)
            if loaded is not None:
                self._engine = self._serve(loaded)
        elif self._rest.is_releasing:
            self._start_watch.heard()
            self._rest.on_message(message)
        elif self._recovery.is_active:
            self._start_watch.heard()
            self._recovery.on_message(message)
        elif isinstance(message, ModelRunnerOutput):
            reach("engine.output_received")
            self._engine.apply(message)
            reach("engine.output_applied")
        elif isinstance(message, GrammarCompiled):
            self._engine.compiled(message)
        elif isinstance(message, AdapterLoaded):
            self._engine.adapter_loaded(message)
        else:
            raise WorkerError(f"the worker sent {type(message).__name__} while serving")

    def _submit_steps(self, engine: EngineCore) -> None:
        for grammar in engine.grammars.take_unsent():
            self._executor.compile(grammar)
        while (output := engine.plan()) is not None:
            reach("engine.step_planned")
            self._executor.submit(output)
            reach("engine.step_submitted")
            self._on_step()
        # After the steps: what they free may be filled now.
        for adapter in engine.take_adapters():
            self._executor.load_adapter(adapter)
