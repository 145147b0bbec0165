"""Reads answers that are messages on channels: reasoning, what is said, and calls, each behind a header.

    <|channel|>analysis<|message|>I look it up.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Bern"}

All of this is one line. The recipient may also stand behind the role. A message to a function is a call of
it; all others on the channel of reasoning are reasoning, and those on any other are content.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from splitserve.frontend.text.answers.calls import Calls
from splitserve.frontend.text.answers.channel_format import Channels
from splitserve.frontend.text.answers.text_source import (
    MAX_NAME_CHARS,
    NotACallError,
    Reading,
    TextSource,
)

_WORD: Final = re.compile(r"[^\s<]*")


class ChannelReaders(NamedTuple):
    """What takes the parts of an answer.

    Attributes:
        content: text that is said.
        reasoning: text of reasoning; None if it is said, too.
        add_break: told that another message of reasoning (True) or content follows the one before.
        calls: gets the calls; None if there can be none.
    """

    content: Callable[[str], None]
    reasoning: Callable[[str], None] | None
    add_break: Callable[[bool], None]
    calls: Calls | None


class _Texts:
    """The texts of messages, with a break between two of the same kind."""

    __slots__ = ("_readers", "_written")

    def __init__(self, readers: ChannelReaders) -> None:
        self._readers = readers
        self._written: set[bool] = set()

    def begin(self, *, in_reasoning: bool) -> Callable[[str], None]:
        """Return what takes the text of a message."""
        readers = self._readers
        is_reasoning = in_reasoning and readers.reasoning is not None
        write = readers.reasoning if is_reasoning and readers.reasoning is not None else readers.content
        needs_break = is_reasoning in self._written

        def give(text: str) -> None:
            nonlocal needs_break
            if needs_break:
                readers.add_break(is_reasoning)
                needs_break = False
            self._written.add(is_reasoning)
            write(text)

        return give


class _Header(NamedTuple):
    """Who gets a message, and on which channel; "" for what is not said."""

    channel: str
    recipient: str = ""


_CUT: Final = _Header("")


def read_messages(
    source: TextSource, channels: Channels, readers: ChannelReaders, begun: str = ""
) -> Reading[None]:
    """Read a whole answer.

    Args:
        source: at its beginning.
        channels: how it is written.
        readers: take its parts.
        begun: channel of the message that the prompt has begun, "" for none.
    """
    texts = _Texts(readers)
    if begun:
        yield from _message(source, channels, texts, None, _Header(begun))
    say = texts.begin(in_reasoning=False)
    while (yield from source.peek()):
        header = yield from source.attempt(_header(source, channels))
        if header is _CUT:
            return
        if header is not None:
            yield from _message(source, channels, texts, readers.calls, header)
            say = texts.begin(in_reasoning=False)
            continue
        # Text without a header is said; so is a tag that begins none.
        place = source.place
        tag = yield from source.pass_on((channels.start, channels.channel), say, trims=False)
        if tag and source.place == place:
            source.pass_tag(tag, say)


def _header(source: TextSource, channels: Channels) -> Reading[_Header]:
    """Read the header of a message; one that is cut off by the end of the text says nothing.

    Raises:
        NotACallError: there is none here.
    """
    role, tags = "", (channels.channel, channels.message)
    yield from source.space()
    if (yield from source.skip(channels.start)):
        role, tag = yield from source.until_any(tags, MAX_NAME_CHARS)
    elif (yield from source.skip(channels.recipient)):
        role, tag = yield from source.until_any(tags, MAX_NAME_CHARS)
        role = f"{channels.recipient}{role}"
        if not tag:
            raise NotACallError
    else:
        yield from source.expect(channels.channel)
        tag = channels.channel
    where = ""
    if tag == channels.channel:
        where, tag = yield from source.until_any((channels.message,), MAX_NAME_CHARS)
    if not tag:
        return _CUT
    return _Header(_word(where.lstrip()), _recipient(role, channels) or _recipient(where, channels))


def _message(
    source: TextSource, channels: Channels, texts: _Texts, calls: Calls | None, header: _Header
) -> Reading[None]:
    """Read the text of a message, and the tag that ends it."""
    stops = (*channels.ends, channels.start)
    if calls is not None and _begins_call(calls, channels, header):
        tag = yield from _arguments(source, stops, calls)
    else:
        give = texts.begin(in_reasoning=header.channel == channels.reasoning)
        tag = yield from source.pass_on(stops, give, trims=False)
    if tag in channels.ends:
        yield from source.skip(tag)


def _begins_call(calls: Calls, channels: Channels, header: _Header) -> bool:
    """Begin the call that a message is, if it is one."""
    name = header.recipient.removeprefix(channels.functions)
    try:
        calls.check(name, known_only=name == header.recipient)
    except NotACallError:
        return False
    calls.start(name)
    return True


def _arguments(source: TextSource, stops: tuple[str, ...], calls: Calls) -> Reading[str]:
    """Read the arguments of the call that has begun; returns the tag behind them, "" for the end."""
    yield from source.space()
    place = source.place
    tag = yield from source.pass_on(stops, calls.add_arguments, trims=True)
    if source.place == place:
        calls.add_arguments("{}")
    yield from source.space()
    return tag


def _recipient(text: str, channels: Channels) -> str:
    _, _, rest = text.partition(channels.recipient)
    return _word(rest)


def _word(text: str) -> str:
    match = _WORD.match(text)
    assert match is not None
    return match[0]
