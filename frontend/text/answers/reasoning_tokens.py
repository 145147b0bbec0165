"""How many tokens of an answer were reasoning? Told by the place of each token's text in the whole text."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from splitserve.frontend.text.answers.parser import AnswerParser
from splitserve.frontend.text.detokenizer import Detokenizer


class ReasoningTokens:
    """Counts the tokens of one answer whose text is reasoning; tags and whitespace around it are none.

    Attributes:
        count: so far.
    """

    __slots__ = ("_detokenizer", "_parser", "_place", "_waiting", "count")

    def __init__(self, parser: AnswerParser, detokenizer: Detokenizer) -> None:
        """Begin with no token.

        Args:
            parser: of the answer.
            detokenizer: one of its own, like that of the answer's text.
        """
        self.count = 0
        self._parser = parser
        self._detokenizer: Detokenizer | None = detokenizer
        self._place = 0
        # Begin and end of tokens whose text the parser holds back, or has not been given yet.
        self._waiting: deque[tuple[int, int]] = deque()

    def add(self, token_ids: Sequence[int]) -> None:
        """Take new tokens, before the parser takes their text."""
        if self._detokenizer is None:
            return
        for token_id in token_ids:
            begin = self._place
            self._place += len(self._detokenizer.push((token_id,)))
            self._waiting.append((begin, self._place))

    def settle(self) -> None:
        """Count what the parser has found to be reasoning since the last call."""
        start, end = self._parser.reasoning_start, self._parser.reasoning_end
        if start is not None:
            while self._waiting and self._waiting[0][0] < end:
                first, last = self._waiting.popleft()
                # The tokens of a character that is not complete yet have no text, but a place.
                self.count += last > start or first >= start
        if self._parser.reasoning_done:
            self._detokenizer = None
            self._waiting.clear()
