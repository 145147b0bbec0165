"""Text that arrives in pieces, read as if it were all there: what needs more of it yields until there is.

A reader is a generator that takes from a TextSource. It decides only what no later text can change, so what
it makes of a text does not depend on the pieces.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Generator, Iterable
from typing import Protocol, TypeVar

from splitserve.frontend.text.stop_strings import num_begun

T = TypeVar("T")
# Yields when it needs more text, or the end of it.
Reading = Generator[None, None, T]

# Most characters that are held until it is clear whether they are a call.
MAX_HELD = 16384
# The same for a name.
MAX_NAME_CHARS = 512
_SPACE = re.compile(r"\s*")
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class NotACallError(Exception):
    """What was tried does not stand there."""


class Span(Protocol):
    """Knows where something of unknown length ends.

    Attributes:
        done: whether its end has been found.
    """

    done: bool

    def advance(self, text: str, pos: int) -> int:
        """Look at text from a place on; return where the span ends, or the text if it goes on."""


class TextSource:
    """The text of one answer, as far as it has come and is not done with.

    Attributes:
        ended: whether no more text comes.
    """

    __slots__ = ("_num_dropped", "_pos", "_start", "_text", "ended")

    def __init__(self) -> None:
        self.ended = False
        self._text = ""
        self._pos = 0
        # Where what is being tried began; None while nothing is.
        self._start: int | None = None
        self._num_dropped = 0

    @property
    def place(self) -> int:
        """How many characters of the whole text have been read."""
        return self._num_dropped + self._pos

    @property
    def settled_place(self) -> int:
        """How many of them will not be read again."""
        return self._num_dropped + (self._pos if self._start is None else self._start)

    def push(self, text: str) -> None:
        """Add text; what was read is dropped unless it may be read again."""
        if self._start is None:
            self._num_dropped += self._pos
            self._text, self._pos = self._text[self._pos :] + text, 0
        else:
            self._text += text

    def attempt(self, reader: Reading[T]) -> Reading[T | None]:
        """Read something that may not stand there; if it does not, return None, and nothing has been read.

        The reader calls commit() once it does, or returns. Until then it may look at MAX_HELD characters.
        """
        assert self._start is None
        self._start = self._pos
        try:
            result = yield from reader
        except NotACallError:
            assert self._start is not None
            self._pos = self._start
            return None
        finally:
            self._start = None
        return result

    def commit(self) -> None:
        """Accept what the attempt has read; from here on it cannot fail."""
        self._start = None

    def space(self) -> Reading[None]:
        """Pass over whitespace."""
        while True:
            match = _SPACE.match(self._text, self._pos)
            assert match is not None
            self._read_to(match.end())
            if self._pos < len(self._text) or self.ended:
                return
            yield from self._more()

    def peek(self) -> Reading[str]:
        """Return the next character without reading it, "" at the end."""
        while self._pos == len(self._text):
            if self.ended:
                return ""
            yield from self._more()
        return self._text[self._pos]

    def skip(self, tag: str, *, cut: bool = False) -> Reading[bool]:
        """Read a tag if it stands here; whether it does.

        Args:
            tag: what to read.
            cut: so does its beginning, at the end of the text.
        """
        while len(self._text) - self._pos < len(tag):
            if self.ended or not tag.startswith(self._text[self._pos :]):
                break
            yield from self._more()
        is_there = self._text.startswith(tag, self._pos)
        if not is_there and not (cut and self.ended and tag.startswith(self._text[self._pos :])):
            return False
        self._read_to(min(self._pos + len(tag), len(self._text)))
        return True

    def expect(self, tag: str) -> Reading[None]:
        """Read a tag.

        Raises:
            NotACallError: it does not stand here.
        """
        if not (yield from self.skip(tag)):
            raise NotACallError

    def string(self) -> Reading[str]:
        """Read a JSON string as it is written, quotes included.

        Raises:
            NotACallError: none begins here, or it does not end.
        """
        if (yield from self.peek()) != '"':
            raise NotACallError
        while (match := _STRING.match(self._text, self._pos)) is None:
            yield from self._more()
        self._read_to(match.end())
        return match[0]

    def until(
        self, tags: Collection[str], kept: Collection[str] = (), max_chars: int = MAX_HELD
    ) -> Reading[str]:
        """Read up to the first of some tags, and the tag unless it is to be kept; return what stood before.

        Raises:
            NotACallError: there is none, or more than max_chars stand before it.
        """
        pattern, longest = tags_pattern(frozenset(tags)), max(map(len, tags))
        while (match := pattern.search(self._text, self._pos)) is None:
            if len(self._text) - self._pos >= max_chars + longest:
                raise NotACallError
            yield from self._more()
        if match.start() - self._pos > max_chars:
            raise NotACallError
        found = self._text[self._pos : match.start()]
        self._read_to(match.start() if match[0] in kept else match.end())
        return found

    def until_any(self, tags: Collection[str], max_chars: int) -> Reading[tuple[str, str]]:
        """Read up to and with the first of some tags; return what stood before it, and the tag.

        If there is none before the end of the text, all is read, and the tag is "".

        Raises:
            NotACallError: more than max_chars stand before it.
        """
        pattern, longest = tags_pattern(frozenset(tags)), max(map(len, tags))
        while (match := pattern.search(self._text, self._pos)) is None:
            if len(self._text) - self._pos >= max_chars + longest:
                raise NotACallError
            if self.ended:
                rest = self._text[self._pos :]
                self._read_to(len(self._text))
                return rest, ""
            yield from self._more()
        if match.start() - self._pos > max_chars:
            raise NotACallError
        found = self._text[self._pos : match.start()]
        self._read_to(match.end())
        return found, match[0]

    def pass_on(self, tags: Collection[str], give: Callable[[str], None], *, trims: bool) -> Reading[str]:
        """Give out text up to the first of some tags, piece by piece, as soon as it cannot be part of a tag.

        Args:
            tags: none of them is the beginning of another.
            give: takes each piece, none of which is empty.
            trims: whitespace before the tag is left, too.

        Returns:
            The tag, which is still to be read; "" at the end of the text.
        """
        pattern = tags_pattern(frozenset(tags)) if tags else None
        while True:
            match = pattern.search(self._text, self._pos) if pattern is not None else None
            if match is not None:
                self._give(self._trimmed(match.start()) if trims else match.start(), give)
                return match[0]
            if self.ended:
                self._give(len(self._text), give)
                return ""
            safe = len(self._text) - self._num_held(tags)
            self._give(self._trimmed(safe) if trims else safe, give)
            yield

    def pass_tag(self, tag: str, give: Callable[[str], None]) -> None:
        """Give out a tag that pass_on() has found, and what it left before it."""
        self._give(self._text.index(tag, self._pos) + len(tag), give)

    def take_span(self, span: Span, give: Callable[[str], None]) -> Reading[None]:
        """Give out text up to the end of a span; if it is cut off, all that has come of it.

        Raises:
            NotACallError: it is cut off, and so is the attempt that this is part of.
        """
        while True:
            end = span.advance(self._text, self._pos)
            text = self._text[self._pos : end]
            self._read_to(end)
            if text:
                give(text)
            if span.done or (self.ended and self._start is None):
                return
            yield from self._more()

    def _trimmed(self, end: int) -> int:
        """Return where the text before a place ends but for whitespace, of which only so much is held."""
        return max(self._pos + len(self._text[self._pos : end].rstrip()), end - MAX_HELD)

    def _give(self, end: int, give: Callable[[str], None]) -> None:
        text = self._text[self._pos : end]
        self._pos = end
        if text:
            give(text)

    def _num_held(self, tags: Iterable[str]) -> int:
        """Count the characters at the end that a tag may begin with."""
        tail = self._text[self._pos :]
        return max((num_begun(tail, tag) for tag in tags), default=0)

    def _read_to(self, end: int) -> None:
        if self._start is not None and end - self._start > MAX_HELD:
            raise NotACallError
        self._pos = end

    def _more(self) -> Reading[None]:
        is_over = self._start is not None and len(self._text) - self._start > MAX_HELD
        if self.ended or is_over:
            raise NotACallError
        yield


@functools.lru_cache(maxsize=256)
def tags_pattern(tags: frozenset[str]) -> re.Pattern[str]:
    """Return what matches any of some tags of a format; remembered."""
    return re.compile("|".join(re.escape(tag) for tag in sorted(tags)))
