"""What is new in an answer: content, reasoning, a tool call that begins, or more of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ContentText(NamedTuple):
    """More of the content; never empty."""

    text: str


class ReasoningText(NamedTuple):
    """More of the reasoning; never empty."""

    text: str


class CallStarted(NamedTuple):
    """A tool call has begun; its arguments follow.

    Attributes:
        call: its number, 0 for the first call of the answer, then 1 and so on.
        name: of the function, as the model wrote it.
    """

    call: int
    name: str


class CallArguments(NamedTuple):
    """More of the arguments of a call, which are JSON text unless the model wrote something else."""

    call: int
    text: str


AnswerDelta = ContentText | ReasoningText | CallStarted | CallArguments


def joined(deltas: Sequence[AnswerDelta]) -> list[AnswerDelta]:
    """Return deltas with neighbours joined that go on with the same text."""
    found: list[AnswerDelta] = []
    for delta in deltas:
        match found[-1] if found else None, delta:
            case ContentText(before), ContentText(after):
                found[-1] = ContentText(before + after)
            case ReasoningText(before), ReasoningText(after):
                found[-1] = ReasoningText(before + after)
            case CallArguments(call, before), CallArguments(_, after):
                found[-1] = CallArguments(call, before + after)
            case _:
                found.append(delta)
    return found
