"""What may an output be that is messages on channels, if tools may be called? Two grammars, as in outputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from splitserve.frontend.text.answers.channel_format import Channels
from splitserve.frontend.text.call_grammar.channel_calls import ChannelCalls
from splitserve.frontend.text.call_grammar.demand import CallDemand
from splitserve.frontend.text.call_grammar.lark import Lark, one_of

_ANY: Final = "(?s:.*)"
_SOME: Final = "/(?s:.+)/"


class ChannelOutputs:
    """Writes the grammar of one output."""

    def __init__(self, lark: Lark, demand: CallDemand, channels: Channels, bounded_thought: str = "") -> None:
        """Prepare.

        Args:
            lark: without rules.
            demand: of the request.
            channels: how messages are written.
            bounded_thought: matches the text of the only message of reasoning, and the tag that ends it; ""
                if there may be any number, of any length.

        Raises:
            RefusalError: the tags are no tokens.
        """
        self._lark, self._demand, self._channels = lark, demand, channels
        self._calls = ChannelCalls(lark, demand, channels)
        self._is_bounded = bool(bounded_thought)
        self._thought = bounded_thought or f"{lark.any_text()} {self._calls.end}"

    def calls_or_answer(self, answer: str) -> str:
        """Return the grammar of reasoning, then calls, or an answer of a certain form if none is required.

        Args:
            answer: expression for the answer, "" for none.

        Raises:
            RefusalError: a tool's schema cannot be followed.
        """
        lark, calls, channels = self._lark, self._calls, self._channels
        form = "" if self._demand.required or not answer else f"{answer} {calls.ended}?"
        said = f'{calls.channel} "{channels.answer}" {calls.kind()} {calls.message} {form}' if form else ""
        first = self._either("first_end", f"{calls.first()} {calls.more()}", said)
        later = self._either("later_end", f"{calls.later()} {calls.more()}", said and f"{calls.role} {said}")
        more = f"({calls.role} {self._thinking()} {self._thought} {calls.start})*"
        rest = f"{calls.start} {'' if self._is_bounded else more} {later}"
        match self._demand.begun:
            case "":
                self._either("start", first, f"{self._thinking()} {self._thought} {rest}")
            case channels.reasoning:
                lark.rule("start", f"{self._thought} {rest}")
            case _:
                # What the prompt has begun to say has the form, or ends at once.
                self._either("start", f"{calls.end} {rest}", form)
        return str(lark)

    def text_with_calls(self) -> str:
        """Return the grammar of an output of any messages, of which those to tools have arguments that fit.

        Raises:
            RefusalError: a tool's schema cannot be followed.
        """
        lark, calls = self._lark, self._calls
        first, later = (
            [f"{self._first_message()} {calls.ended}?"],
            [f"{self._later_message()} {calls.ended}?"],
        )
        if self._demand.several:
            first.append(f"{calls.first()} {calls.ended}")
            later.append(f"{calls.later()} {calls.ended}")
        part = lark.rule("part", f"{calls.start} {one_of(later)}")
        rest = f"{part}* ({calls.start} {calls.later()} {calls.ended}?)?"
        whole = [f"{each} {rest}" for each in self._beginnings(one_of(first))]
        if not self._demand.begun:
            whole.append(f"{calls.first()} {calls.ended}?")
        lark.rule("start", one_of(whole))
        return str(lark)

    def _beginnings(self, first: str) -> Sequence[str]:
        """Return what outputs of messages may begin with: the first, or reasoning that is bounded."""
        match self._demand.begun, self._is_bounded:
            case "", False:
                return (first,)
            case "", True:
                return first, f"{self._thinking()} {self._thought}"
            case self._channels.reasoning, True:
                return (self._thought,)
        return (f"{self._free()} {self._calls.ended}?",)

    def _first_message(self) -> str:
        """Return the rule of a message to nobody that no tag begins, or of text without a header."""
        lark, calls = self._lark, self._calls
        message = f"{self._plain()}? {calls.channel} {self._where()} {calls.message} {self._free()}"
        to = re.escape(self._channels.recipient)
        said = lark.rule("SAID", rf"{_SOME} & ~/\s*{to}{_ANY}/")
        return lark.rule("first_message", f"{message} | {said}? {self._passed(self._channels.channel)}")

    def _later_message(self) -> str:
        """Return the rule of a message to nobody behind the tag that begins it."""
        calls = self._calls
        head = f"{self._plain()}? ({calls.channel} {self._where()})?"
        return self._lark.rule("later_message", f"{head} {calls.message} {self._free()}")

    def _thinking(self) -> str:
        """Return what stands before the text of reasoning, behind the role."""
        return f'{self._calls.channel} "{self._channels.reasoning}" {self._calls.message}'

    def _where(self) -> str:
        """Return the rule of what stands between the channel's tag and the text of a message to nobody."""
        lark, channels = self._lark, self._channels
        plain = name = self._plain()
        if self._is_bounded:
            reasoning = re.escape(channels.reasoning)
            name = lark.rule("NOT_REASONING", rf"{_SOME} & {self._no_recipient()} & ~/\s*{reasoning}{_ANY}/")
        constrain = lark.text(channels.constrain)
        tagged = f" ({constrain} {plain}?)?" if lark.is_token(channels.constrain) else ""
        return lark.rule("where", f"{name}?{tagged}")

    def _plain(self) -> str:
        """Return the rule of a part of a header that names no recipient; it is not empty."""
        return self._lark.rule("PLAIN", f"{_SOME} & {self._no_recipient()}")

    def _no_recipient(self) -> str:
        return f"~/{_ANY}{re.escape(self._channels.recipient)}{_ANY}/"

    def _free(self) -> str:
        """Return the rule of the text of a message to nobody; it may be empty."""
        return self._lark.rule("free", f"{self._lark.any_text()} {self._passed()}")

    def _passed(self, *excluded: str) -> str:
        """Return what matches tokens that neither end nor begin a message, each with text behind it."""
        other = self._lark.other_tokens((self._channels.start, *self._channels.ends, *excluded))
        return f"({other} {self._lark.any_text()})*" if other else ""

    def _either(self, name: str, *options: str) -> str:
        """Return the rule of one of some expressions, of which the empty ones do not count."""
        return self._lark.rule(name, " | ".join(filter(None, options)))
