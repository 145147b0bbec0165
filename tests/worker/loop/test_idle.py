"""Between steps a worker prepares what later steps need, until the next message is there."""

from __future__ import annotations

import pytest
import torch

from splitserve.engine_core.ipc.codec import encode
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.ipc.worker_messages import (
    ModelRunnerOutput,
    SchedulerOutput,
    Shutdown,
    WorkerReady,
)
from splitserve.worker.batch.step_graphs import StepInFlight
from splitserve.worker.config import WorkerConfig
from splitserve.worker.grammar.compiler import GrammarCompiler
from splitserve.worker.lora.loader import AdapterLoader
from splitserve.worker.serving import Serving


class Script:
    """Link and worker in one: messages arrive when their event comes up; logs what happens.

    Args:
        events: "wait" for a moment without a message, else a message that is there from then on.
        num_parts: how often there is something to prepare.
        is_flying: steps run on by themselves.
    """

    def __init__(self, events: list[object], num_parts: int, is_flying: bool = False) -> None:
        self._events = events
        self._num_parts = num_parts
        self._is_flying = is_flying
        self.log: list[str] = []
        self.grammars = GrammarCompiler("", 1, [])
        self.adapters = AdapterLoader(None, torch.float32)

    def has_message(self) -> bool:
        if self._events[0] == "wait":
            self._events.pop(0)
            return False
        return True

    def receive(self) -> bytes:
        while self._events[0] == "wait":
            self._events.pop(0)
        self.log.append("receive")
        return encode(self._events.pop(0))

    def prepare_ahead(self) -> bool:
        if self._num_parts == 0:
            return False
        self._num_parts -= 1
        self.log.append("prepare")
        return True

    def can_follow(self, step: SchedulerOutput) -> bool:
        return True

    def begin(self, step: SchedulerOutput) -> ModelRunnerOutput | StepInFlight:
        self.log.append("begin")
        # Too long a step for its reply to wait for the next one.
        output = ModelRunnerOutput(step.step, b"", b"", compute_s=1.0)
        return StepInFlight(lambda: output, lambda: None) if self._is_flying else output

    def check_engine(self) -> None:
        """It is there."""

    def send(self, output: ModelRunnerOutput) -> None:
        self.log.append("send")


def run(*events: object, num_parts: int, is_flying: bool = False) -> list[str]:
    script = Script([*events, Shutdown()], num_parts, is_flying)
    ready = WorkerReady(ModelInfo("", "", "", 1, 1, []), 1, 1, 0.0)
    assert Serving(script, WorkerConfig(), script, ready).run() == 0  # type: ignore[arg-type]
    return script.log


STEP = SchedulerOutput(1, b"", b"")


def test_it_prepares_until_a_message_is_there() -> None:
    log = run("wait", "wait", "wait", STEP, num_parts=9)
    assert log == ["prepare", "prepare", "prepare", "receive", "begin", "send", "receive"]


def test_it_waits_once_nothing_is_left_to_prepare() -> None:
    log = run("wait", "wait", "wait", "wait", STEP, num_parts=1)
    assert log == ["prepare", "receive", "begin", "send", "receive"]


def test_a_step_on_the_device_is_answered_first() -> None:
    log = run(STEP, "wait", STEP, num_parts=1, is_flying=True)
    assert log == ["receive", "begin", "send", "prepare", "receive", "begin", "receive", "send"]


@pytest.mark.parametrize("num_parts", [0, 3])
def test_nothing_is_prepared_while_messages_are_there(num_parts: int) -> None:
    assert run(STEP, STEP, num_parts=num_parts) == ["receive", "begin", "send"] * 2 + ["receive"]
