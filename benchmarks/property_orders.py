"""Does a grammar take a JSON value if its properties come in another order?"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# Values that are tried before it is given up.
MAX_TRIES = 20_000

Feed = Callable[["LLMatcher", str], "LLMatcher | None"]


def takes_in_some_order(matcher: LLMatcher, tokenizer: LLTokenizer, value: object) -> bool:
    """Whether a matcher at its start takes a value with the properties of its objects in some order."""

    def feed(before: LLMatcher, text: str) -> LLMatcher | None:
        after, ids = before.deep_copy(), tokenizer.tokenize_str(text)
        return after if after.try_consume_tokens(ids) == len(ids) else None

    tries = iter(range(MAX_TRIES))
    return any(after.is_accepting() for after in _after(matcher, value, feed, tries))


def _after(matcher: LLMatcher, value: object, feed: Feed, tries: Iterator[int]) -> Iterator[LLMatcher]:
    """Yield the matchers behind a value, one for each order that is taken."""
    if next(tries, None) is None:
        return
    if isinstance(value, dict):
        within = _within(matcher, "{}", feed, lambda inside: _members(inside, value, feed, tries))
    elif isinstance(value, list):
        within = _within(matcher, "[]", feed, lambda inside: _items(inside, value, feed, tries))
    else:
        within = _fed(matcher, json.dumps(value, ensure_ascii=False), feed)
    yield from within


def _fed(matcher: LLMatcher, text: str, feed: Feed) -> Iterator[LLMatcher]:
    after = feed(matcher, text)
    return iter(() if after is None else (after,))


def _within(
    matcher: LLMatcher, ends: str, feed: Feed, content: Callable[[LLMatcher], Iterator[LLMatcher]]
) -> Iterator[LLMatcher]:
    for inside in _fed(matcher, ends[0], feed):
        for last in content(inside):
            yield from _fed(last, ends[1], feed)


def _items(
    matcher: LLMatcher, items: Sequence[object], feed: Feed, tries: Iterator[int], comma: str = ""
) -> Iterator[LLMatcher]:
    if not items:
        yield matcher
        return
    for before in _fed(matcher, comma, feed) if comma else [matcher]:
        for after in _after(before, items[0], feed, tries):
            yield from _items(after, items[1:], feed, tries, ",")


def _members(
    matcher: LLMatcher, members: Mapping[str, object], feed: Feed, tries: Iterator[int], comma: str = ""
) -> Iterator[LLMatcher]:
    if not members:
        yield matcher
        return
    for name, value in members.items():
        rest = {key: each for key, each in members.items() if key != name}
        for before in _fed(matcher, f"{comma}{json.dumps(name, ensure_ascii=False)}:", feed):
            for after in _after(before, value, feed, tries):
                yield from _members(after, rest, feed, tries, ",")
