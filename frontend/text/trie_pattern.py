"""A regular expression for any of many words that looks at each character once, however many there are."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NOTHING = "(?!)"


class _Node(dict[str, "_Node"]):
    is_end = False


def trie_pattern(words: Iterable[str]) -> str:
    """Return a pattern for the longest of these words; for no words, one that never matches.

    A plain alternation of a thousand words that all begin with "<" tries each of them at every "<".
    """
    root = _Node()
    for word in words:
        node = root
        for char in word:
            node = node.setdefault(char, _Node())
        node.is_end = True
    return _pattern(root) if root else _NOTHING


def _pattern(node: _Node) -> str:
    prefix = ""
    while len(node) == 1 and not node.is_end:
        ((char, node),) = node.items()
        prefix += re.escape(char)
    if not node:
        return prefix
    branches = "|".join(re.escape(char) + _pattern(child) for char, child in node.items())
    # The optional group is greedy: a longer word goes before one it begins with.
    return f"{prefix}(?:{branches}){'?' if node.is_end else ''}"
