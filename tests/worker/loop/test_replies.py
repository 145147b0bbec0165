"""Two short steps are answered together, if the second is here when the first ends; all others at once."""

from __future__ import annotations

from engine_core.config import SHORT_STEP_S
from engine_core.ipc.worker_messages import ModelRunnerOutput
from worker.replies import Replies


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
