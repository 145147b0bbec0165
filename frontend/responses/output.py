"""The items of a response as they grow, delta by delta, for whole answers and for streams.

what is new               begins an item                                     adds to it
text, reasoning           if none of its kind is open; the open one ends     yes
a call                    always; the open one ends                          its arguments do
the last delta            a message without text, if there is no item        the open one ends
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from splitserve.frontend.engines.generation import OutputDelta, TokenLogprob
from splitserve.frontend.openai.answers.chat_parts import new_call_id
from splitserve.frontend.openai.answers.choice_reader import ChoiceReaders
from splitserve.frontend.responses.schema.items import ItemStatus
from splitserve.frontend.text.answers.deltas import (
    AnswerDelta,
    CallArguments,
    CallStarted,
    ContentText,
    ReasoningText,
)

ItemKind = Literal["message", "reasoning", "function_call"]
_PREFIXES: dict[ItemKind, str] = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_ID_BYTES = 16


@dataclass(slots=True)
class Item:
    """An item of the output.

    Attributes:
        index: its place.
        name: of the function of a call.
        call_id: of a call.
        texts: of its text, its reasoning or its arguments.
        logprobs: of its text's tokens, if they were asked for.
    """

    kind: ItemKind
    id: str
    index: int
    name: str = ""
    call_id: str = ""
    status: ItemStatus = "in_progress"
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(self.texts)


class Begun(NamedTuple):
    """An item begins."""

    item: Item


class Grown(NamedTuple):
    """An item has more text."""

    item: Item
    text: str
    logprobs: Sequence[TokenLogprob] = ()


class Ended(NamedTuple):
    """An item has ended."""

    item: Item


Step = Begun | Grown | Ended


class Output:
    """The output of one response.

    Attributes:
        items: that have begun.
        finish_reason: why it ended, as a chat has it; None while it goes on.
    """

    def __init__(self, readers: ChoiceReaders | None) -> None:
        """Begin with nothing.

        Args:
            readers: tell content, reasoning and tool calls apart; None if all text is content.
        """
        self.items: list[Item] = []
        self.finish_reason: str | None = None
        self._readers = readers
        self._open: Item | None = None
        # Of tokens whose text is held back.
        self._logprobs: list[TokenLogprob] = []

    def read(self, delta: OutputDelta) -> list[Step]:
        """Take what is new; return what that does to the items, in order."""
        self._logprobs += delta.logprobs
        if self._readers is None:
            found: Sequence[AnswerDelta] = [ContentText(delta.text)] if delta.text else []
            finish_reason = delta.finish_reason
        else:
            found = self._readers.read(delta)
            finish_reason = self._readers.finish_reason(delta)
        if found and not any(isinstance(each, ContentText) for each in found):
            self._logprobs = []
        steps = [step for each in found for step in self._take(each)]
        return steps if finish_reason is None else steps + self._end(finish_reason)

    def _take(self, delta: AnswerDelta) -> list[Step]:
        match delta:
            case ContentText(text):
                return [*self._begin("message"), self._grow(text)]
            case ReasoningText(text):
                return [*self._begin("reasoning"), self._grow(text)]
            case CallStarted(_, name):
                return [*self._close("completed"), *self._begin("function_call", name, new_call_id())]
            case CallArguments(_, text):
                return [self._grow(text)]

    def _begin(self, kind: ItemKind, name: str = "", call_id: str = "") -> list[Step]:
        if self._open is not None and self._open.kind == kind:
            return []
        ended = self._close("completed")
        item_id = f"{_PREFIXES[kind]}_{secrets.token_hex(_ID_BYTES)}"
        self._open = Item(kind, item_id, len(self.items), name, call_id)
        self.items.append(self._open)
        return [*ended, Begun(self._open)]

    def _grow(self, text: str) -> Step:
        item = self._open
        assert item is not None
        item.texts.append(text)
        logprobs: Sequence[TokenLogprob] = ()
        if item.kind == "message":
            logprobs, self._logprobs = self._logprobs, []
            item.logprobs += logprobs
        return Grown(item, text, logprobs)

    def _end(self, finish_reason: str) -> list[Step]:
        self.finish_reason = finish_reason
        steps = [] if self.items else self._begin("message")
        if self._logprobs and self._open is not None and self._open.kind == "message":
            steps.append(self._grow(""))
        return steps + self._close("incomplete" if finish_reason in ("length", "abort") else "completed")

    def _close(self, status: ItemStatus) -> list[Step]:
        if self._open is None:
            return []
        item, self._open = self._open, None
        item.status = status
        return [Ended(item)]
