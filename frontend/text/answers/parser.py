"""Takes the text of one answer apart as it arrives: reasoning, content and tool calls; no I/O.

    beginning --reasoning's first tag, or it stands in the prompt--> reasoning --its last tag--> content
    beginning --anything else--> content
    beginning --the format has channels--> messages (frontend.text.answers.channels)
    content   --a tag of calls, or a bare call--> calls --their end, or what is no call--> content

What may still become a tag is held back, and so is what may become a call until it has a name. What does not
become one is content, whole. Whitespace around tags is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from splitserve.frontend.text.answers.calls import Calls, ParameterTypes
from splitserve.frontend.text.answers.channel_format import Channels
from splitserve.frontend.text.answers.channels import ChannelReaders, read_messages
from splitserve.frontend.text.answers.deltas import AnswerDelta, ContentText, ReasoningText
from splitserve.frontend.text.answers.formats import (
    AnswerFormats,
    NamedCall,
    PythonCall,
    QuotedCall,
    ReasoningFormat,
    TaggedCall,
    ToolFormat,
)
from splitserve.frontend.text.answers.json_calls import json_calls
from splitserve.frontend.text.answers.python_calls import python_calls
from splitserve.frontend.text.answers.quoted_calls import quoted_call
from splitserve.frontend.text.answers.shaped_calls import named_calls, tagged_calls
from splitserve.frontend.text.answers.text_source import NotACallError, Reading, TextSource

# Between the texts of two messages.
_BREAK: Final = "\n\n"


@dataclass(slots=True, frozen=True)
class AnswerRules:
    """How the answers of one request are parsed.

    Attributes:
        formats: those that count for the request.
        tools: parameters of its tools, by the name of the tool.
        in_reasoning: the prompt ends within reasoning.
        in_content: it ends within the answer, if the format has channels.
    """

    formats: AnswerFormats
    tools: Mapping[str, ParameterTypes] = field(default_factory=dict)
    in_reasoning: bool = False
    in_content: bool = False

    @property
    def channels(self) -> Channels | None:
        """How answers are written that are messages on channels; None for those that are text."""
        reasoning, tools = self.formats
        if reasoning is not None:
            return reasoning.channels
        return tools.channels if tools is not None else None

    @property
    def begun(self) -> str:
        """Channel of the message that the prompt has begun; "" for none, or if answers are text."""
        channels = self.channels
        if channels is None:
            return ""
        return channels.answer if self.in_content else channels.reasoning if self.in_reasoning else ""

    @property
    def tags(self) -> frozenset[str]:
        """All tags that must be in the text."""
        reasoning, tools = self.formats
        found = frozenset(reasoning.tags if reasoning is not None else ())
        return found | (tools.tags if tools is not None else frozenset())


class AnswerParser:
    """Parses one answer. The deltas of all pieces joined do not depend on how the text was cut into pieces.

    Attributes:
        reasoning_spans: first and last place of each stretch of reasoning in the text, as far as it has been
            given out.
        reasoning_done: whether no more of it comes.
    """

    def __init__(self, rules: AnswerRules) -> None:
        """Begin with nothing."""
        self._rules = rules
        self._source = TextSource()
        self._new: list[AnswerDelta] = []
        self._calls = Calls(rules.tools, self._new.append)
        self._reading = self._answer()
        self.reasoning_spans: list[tuple[int, int]] = []
        self.reasoning_done = False

    @property
    def settled_place(self) -> int:
        """How many characters of the text it knows for certain what they are."""
        return self._source.settled_place

    def push(self, text: str) -> list[AnswerDelta]:
        """Take new text; return what is new of the answer."""
        self._source.push(text)
        next(self._reading)
        return self._take()

    def finish(self) -> list[AnswerDelta]:
        """Return what was held back; nothing may be pushed afterwards."""
        self._source.ended = True
        next(self._reading, None)
        self.reasoning_done = True
        return self._take()

    def _take(self) -> list[AnswerDelta]:
        new = self._new.copy()
        self._new.clear()
        return new

    def _answer(self) -> Reading[None]:
        reasoning, tools = self._rules.formats
        channels = self._rules.channels
        if channels is not None:
            yield from self._messages(channels)
            return
        dropped = ""
        if reasoning is not None:
            # Some models write the tag again that their template wrote.
            has_begun = yield from self._source.attempt(_any_tag(self._source, reasoning.begins))
            if has_begun or self._rules.in_reasoning:
                yield from self._reasoning(reasoning)
                dropped = reasoning.answer_end
        self.reasoning_done = True
        if tools is None and not dropped:
            yield from self._source.pass_on((), self._give_content, trims=False)
        else:
            yield from self._content(tools, (dropped,) if dropped else ())

    def _messages(self, channels: Channels) -> Reading[None]:
        reasoning, tools = self._rules.formats
        readers = ChannelReaders(
            content=self._give_content,
            reasoning=None if reasoning is None else self._give_reasoning,
            add_break=self._add_break,
            calls=None if tools is None else self._calls,
        )
        yield from read_messages(self._source, channels, readers, self._rules.begun)
        yield from self._source.pass_on((), _forget, trims=False)

    def _reasoning(self, tags: ReasoningFormat) -> Reading[None]:
        source = self._source
        yield from source.space()
        end = yield from source.pass_on(tags.ends, self._give_reasoning, trims=True)
        yield from source.space()
        yield from source.skip(end)
        yield from source.space()
        yield from source.skip(tags.answer_begin)
        yield from source.space()

    def _content(self, tools: ToolFormat | None, dropped: tuple[str, ...]) -> Reading[None]:
        """Read content and calls; some tags are left out, with the whitespace around them."""
        source, strays = self._source, dropped
        openers = tools.openers if tools is not None else ()
        if tools is not None and tools.bare:
            yield from source.attempt(self._bare_calls(tools))
        while not self._calls.is_full:
            tag = yield from source.pass_on((*openers, *strays), self._give_content, trims=True)
            if not tag:
                return
            if tools is None or tag in strays:
                is_closed = yield from source.attempt(_tag(source, tag))
                if tag in dropped:
                    yield from source.space()
            else:
                is_closed = yield from source.attempt(self._tagged_calls(tools, tag))
            if is_closed is None:
                source.pass_tag(tag, self._give_content)
            else:
                # Behind a broken call the tag that ends it comes late.
                strays = dropped if is_closed or tools is None else (*dropped, tools.end)
        yield from source.pass_on((), self._give_content, trims=False)

    def _bare_calls(self, tools: ToolFormat) -> Reading[bool]:
        yield from self._source.space()
        yield from self._read_calls(tools, known_only=True)
        yield from self._source.space()
        return True

    def _tagged_calls(self, tools: ToolFormat, tag: str) -> Reading[bool]:
        """Read the calls behind a tag; returns whether the tag that ends them was there, or there is none."""
        source = self._source
        if tag in tools.begin:
            yield from _tag(source, tag)
        yield from source.space()
        yield from self._read_calls(tools, known_only=False)
        yield from source.space()
        is_closed = not tools.end or (yield from source.skip(tools.end, cut=True))
        yield from source.space()
        return is_closed

    def _read_calls(self, tools: ToolFormat, *, known_only: bool) -> Reading[bool]:
        source, calls, shape = self._source, self._calls, tools.shape
        if isinstance(shape, PythonCall):
            return (yield from python_calls(source, calls, known_only=known_only))
        if (yield from source.peek()) in ("{", "["):
            return (yield from json_calls(source, calls, known_only=known_only))
        if isinstance(shape, NamedCall):
            return (yield from named_calls(source, calls, shape))
        if isinstance(shape, TaggedCall):
            return (yield from tagged_calls(source, calls, shape, tools.end))
        if isinstance(shape, QuotedCall):
            return (yield from quoted_call(source, calls, shape))
        raise NotACallError

    def _give_content(self, text: str) -> None:
        self._new.append(ContentText(text))

    def _give_reasoning(self, text: str) -> None:
        end = self._source.place
        begin, spans = end - len(text), self.reasoning_spans
        if spans and spans[-1][1] == begin:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((begin, end))
        self._new.append(ReasoningText(text))

    def _add_break(self, in_reasoning: bool) -> None:
        self._new.append(ReasoningText(_BREAK) if in_reasoning else ContentText(_BREAK))


def _forget(text: str) -> None:
    """Take text that is nothing."""


def _tag(source: TextSource, tag: str) -> Reading[bool]:
    """Read a tag and the whitespace before it."""
    yield from source.space()
    yield from source.expect(tag)
    return True


def _any_tag(source: TextSource, tags: Sequence[str]) -> Reading[bool]:
    """Read the whitespace before the first of some tags that stands there, and the tag."""
    yield from source.space()
    for tag in tags[:-1]:
        if (yield from source.skip(tag)):
            return True
    yield from source.expect(tags[-1])
    return True
