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

    __slots__ = ("_detokenizer", "_num_passed", "_parser", "_place", "_waiting", "count")

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
        # Stretches of reasoning that lie before all tokens that wait.
        self._num_passed = 0
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
        settled, done = self._parser.settled_place, self._parser.reasoning_done
        while self._waiting:
            first, last = self._waiting[0]
            # The tokens of a character that is not complete yet have no text, but a place.
            if not done and (last > settled or first >= settled):
                break
            self._waiting.popleft()
            self.count += self._is_reasoning(first, last)
        if done:
            self._detokenizer = None
            self._waiting.clear()

    def _is_reasoning(self, first: int, last: int) -> bool:
        """Tell whether text between two places has some reasoning; no earlier text is asked for later."""
        spans = self._parser.reasoning_spans
        while self._num_passed < len(spans) and spans[self._num_passed][1] <= first:
            self._num_passed += 1
        if self._num_passed == len(spans):
            return False
        start, _ = spans[self._num_passed]
        return last > start or first >= start
