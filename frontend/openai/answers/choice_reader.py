"""Reads the choices of one chat answer: content, reasoning and tool calls out of the deltas of their text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from splitserve.frontend.engines.generation import OutputDelta
from splitserve.frontend.openai.answers.usage import UsageCounter
from splitserve.frontend.text.answers.deltas import (
    AnswerDelta,
    CallArguments,
    CallStarted,
    ReasoningText,
    joined,
)
from splitserve.frontend.text.answers.parser import AnswerParser, AnswerRules
from splitserve.frontend.text.answers.reasoning_tokens import ReasoningTokens
from splitserve.frontend.text.detokenizer import Detokenizer
from splitserve.frontend.text.tokenizer import Tokenizer


@dataclass(slots=True, frozen=True)
class AnswerReading:
    """How the answers of one request are read.

    Attributes:
        rules: how they are parsed.
        kept_ids: special tokens that must stay in the text for that.
        shows_reasoning: whether the client wants it.
        parallel_calls: whether there may be more than one call in an answer.
        call_reason: finish_reason of an answer that the model ended with calls.
    """

    rules: AnswerRules
    kept_ids: frozenset[int]
    shows_reasoning: bool = True
    parallel_calls: bool = True
    call_reason: str = "tool_calls"

    def reader(
        self, tokenizer: Tokenizer, skip_special_tokens: bool, prompt_token_ids: Sequence[int]
    ) -> ChoiceReader:
        """Make the reader of one choice; its tokens are decoded as the engine's stream decodes them."""
        detokenizer = None
        if self.rules.formats.reasoning is not None:
            detokenizer = tokenizer.detokenizer(skip_special_tokens, prompt_token_ids, self.kept_ids)
        return ChoiceReader(self, detokenizer)


class ChoiceReader:
    """Reads one choice.

    Attributes:
        num_calls: how many calls it has.
    """

    __slots__ = ("_parser", "_reading", "_tokens", "num_calls")

    def __init__(self, reading: AnswerReading, detokenizer: Detokenizer | None) -> None:
        """Begin with nothing read.

        Args:
            reading: of the request.
            detokenizer: of the choice's own, to count the tokens of reasoning; None if there is none.
        """
        self.num_calls = 0
        self._reading = reading
        self._parser = AnswerParser(reading.rules)
        self._tokens = None if detokenizer is None else ReasoningTokens(self._parser, detokenizer)

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of reasoning so far."""
        return 0 if self._tokens is None else self._tokens.count

    def read(self, delta: OutputDelta) -> list[AnswerDelta]:
        """Return what is new of the answer with one delta, as far as the client wants to know it."""
        if self._tokens is not None:
            self._tokens.add(delta.token_ids)
        found = self._parser.push(delta.text)
        if delta.finish_reason is not None:
            found += self._parser.finish()
        if self._tokens is not None:
            self._tokens.settle()
        shown = [each for each in found if self._shows(each)]
        self.num_calls += sum(isinstance(each, CallStarted) for each in shown)
        return shown

    def finish_reason(self, delta: OutputDelta) -> str | None:
        """Return why the choice ended, None if it goes on; read() has read the delta."""
        # A stop string is the client's end, not the model's.
        ended_itself = delta.finish_reason == "stop" and not isinstance(delta.stop_reason, str)
        return self._reading.call_reason if ended_itself and self.num_calls else delta.finish_reason

    def _shows(self, delta: AnswerDelta) -> bool:
        if isinstance(delta, ReasoningText):
            return self._reading.shows_reasoning
        is_later_call = isinstance(delta, CallStarted | CallArguments) and delta.call > 0
        return self._reading.parallel_calls or not is_later_call


class ChoiceReaders:
    """The readers of all choices of one request, which tell its usage how much was reasoning."""

    def __init__(self, readers: Sequence[ChoiceReader], usage: UsageCounter) -> None:
        """Begin with nothing read."""
        self._readers = readers
        self._usage = usage
        self._usage.reasoning_tokens = 0

    def read(self, delta: OutputDelta) -> list[AnswerDelta]:
        """Return what is new of the choice that a delta belongs to; neighbours are joined."""
        reader = self._readers[delta.index]
        before = reader.num_reasoning_tokens
        found = joined(reader.read(delta))
        self._usage.reasoning_tokens = (
            (self._usage.reasoning_tokens or 0) + reader.num_reasoning_tokens - before
        )
        return found

    def finish_reason(self, delta: OutputDelta) -> str | None:
        """Return why the choice of a delta has ended, None if it goes on."""
        return self._readers[delta.index].finish_reason(delta)
