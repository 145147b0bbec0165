"""Two short steps are answered together, if the second is here when the first ends; all others at once."""

from __future__ import annotations

from typing import cast

import msgspec
import torch

from splitserve.engine_core.config import SHORT_STEP_S
from splitserve.engine_core.errors import EXIT_OK
from splitserve.engine_core.ipc.codec import encode, pack_int32
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.ipc.worker_messages import (
    ModelRunnerOutput,
    SchedulerOutput,
    Shutdown,
    ToWorkerMessage,
    WorkerReady,
)
from splitserve.worker.batch.replies import Replies
from splitserve.worker.config import WorkerConfig
from splitserve.worker.engine_link import EngineLink
from splitserve.worker.grammar.compiler import GrammarCompiler
from splitserve.worker.lora.loader import AdapterLoader
from splitserve.worker.serving import Serving
from splitserve.worker.worker import Worker


class Sent:
    """What was sent, and whether a message of the engine waits."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.waits = True
        self.replies = Replies(lambda output: self.steps.append(output.step), lambda: self.waits)

    def add(self, step: int, compute_s: float = SHORT_STEP_S / 2) -> list[int]:
        """Answer a step; return all that was sent so far."""
        self.replies.add(ModelRunnerOutput(step, b"", b"", compute_s=compute_s))
        return list(self.steps)


def test_short_steps_are_answered_in_pairs() -> None:
    sent = Sent()
    assert [sent.add(step) for step in (1, 2, 3, 4)] == [[], [1, 2], [1, 2], [1, 2, 3, 4]]


def test_an_answer_leaves_at_once_when_no_step_is_here() -> None:
    sent = Sent()
    sent.waits = False
    assert sent.add(1) == [1]
    sent.waits = True
    assert sent.add(2) == [1]
    sent.waits = False
    assert sent.add(3) == [1, 2, 3]


def test_a_long_step_is_answered_at_once_and_behind_what_was_held() -> None:
    sent = Sent()
    assert sent.add(1, SHORT_STEP_S) == [1]
    assert sent.add(2) == [1]
    assert sent.add(3, 1.0) == [1, 2, 3]


def test_what_is_held_is_sent_once() -> None:
    sent = Sent()
    sent.add(1)
    for _ in range(2):
        sent.replies.flush()
        assert sent.steps == [1]


def decode(step: int, num_rows: int = 2) -> SchedulerOutput:
    return SchedulerOutput(step, pack_int32(range(num_rows)), pack_int32([1] * num_rows))


def test_an_answer_waits_for_no_step_unlike_its_own() -> None:
    unlike = [
        decode(2, num_rows=3),
        msgspec.structs.replace(decode(2), num_tokens=pack_int32([1, 2048])),
        msgspec.structs.replace(decode(2), moves_from=pack_int32([0]), moves_to=pack_int32([9])),
    ]
    for step, left in [(decode(2), []), *[(step, [1]) for step in unlike]]:
        sent = Sent()
        sent.replies.expect(decode(1))
        sent.add(1)
        sent.replies.expect(step)
        assert sent.steps == left, step


class Script:
    """An engine that has said everything already, and a worker whose steps take no time."""

    def __init__(self, *messages: ToWorkerMessage) -> None:
        self._frames = [encode(message) for message in messages]
        self.grammars = GrammarCompiler("", 1, [])
        self.adapters = AdapterLoader(None, torch.float32)
        self.sent: list[int] = []
        self.sent_before: dict[int, list[int]] = {}

    def has_message(self) -> bool:
        return bool(self._frames)

    def receive(self) -> bytes:
        return self._frames.pop(0)

    def send(self, message: ModelRunnerOutput) -> None:
        self.sent.append(message.step)

    def check_engine(self) -> None:
        """It is there."""

    def begin(self, step: SchedulerOutput) -> ModelRunnerOutput:
        self.sent_before[step.step] = list(self.sent)
        return ModelRunnerOutput(step.step, b"", b"")


def test_the_loop_lets_no_answer_wait_for_a_prefill() -> None:
    prefill = msgspec.structs.replace(decode(4), num_tokens=pack_int32([1, 2048]))
    script = Script(decode(1), decode(2), decode(3), prefill, Shutdown())
    link, worker = cast(EngineLink, script), cast(Worker, script)
    ready = WorkerReady(ModelInfo("", "", "", 1, 1, []), 1, 1, 0.0)
    assert Serving(link, WorkerConfig(), worker, ready).run() == EXIT_OK
    assert script.sent_before == {1: [], 2: [], 3: [1, 2], 4: [1, 2, 3]}
    assert script.sent == [1, 2, 3, 4]
