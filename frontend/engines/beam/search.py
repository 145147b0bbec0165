"""Which beams go on, which outputs are found, and when is a beam search over; no I/O.

The rules are those of transformers' `generate` with num_beams, without sampling:

* Every step scores each continuation of each beam by the sum of its logprobs. Of the best `width` of all,
  those that end are found; the best `width` that do not end go on.
* A found output is rated by its sum / length ** length_penalty, and the best `width` found are kept.
* Once `width` are found, early_stopping says whether the search goes on for better ones.

Among equal sums the continuation of the better beam comes first, then the lower token id; among equal rates
the output that was found first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from splitserve.frontend.engines.generation import TokenLogprob


@dataclass(slots=True, frozen=True)
class SearchRules:
    """How a search goes.

    Attributes:
        width: beams that go on, and outputs that are kept; at least 1.
        max_tokens: length at which every output ends; at least 1.
        end_ids: tokens that end an output.
        min_tokens: tokens that come before an end, at least.
        length_penalty: exponent of the length in rates.
        early_stopping: True ends the search as soon as `width` outputs are found; False when the best beam,
            rated at its length of now, is no better than the worst of them; "never" when it would not be at
            whatever length suits it best.
    """

    width: int
    max_tokens: int
    end_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    @property
    def num_candidates(self) -> int:
        """Best continuations needed of each beam: were all ends among them, `width` others are too."""
        return self.width + len(self.end_ids)


class Beam(NamedTuple):
    """An output as far as it goes, and the sum of its logprobs."""

    score: float
    tokens: tuple[TokenLogprob, ...]


class Hypothesis(NamedTuple):
    """An output that has ended, and its rate."""

    rate: float
    beam: Beam


class _Child(NamedTuple):
    """A continuation of the beam at `place`."""

    score: float
    place: int
    token: TokenLogprob


class BeamSearch:
    """The state of one search.

    Attributes:
        beams: those that go on, best first; never more than `width`, and one of no tokens at first.
        found: outputs found so far, best first; at most `width`, and exactly as many once it is done.
        done: nothing more is to be computed.
    """

    def __init__(self, rules: SearchRules) -> None:
        self.beams = [Beam(0.0, ())]
        self.found: list[Hypothesis] = []
        self.done = False
        self._rules = rules

    def advance(self, candidates: Sequence[Sequence[TokenLogprob]]) -> None:
        """Take one step.

        Args:
            candidates: per beam its most probable next tokens, num_candidates of them in any order. What they
                hold beside id and logprob is kept for the output.
        """
        rules = self._rules
        length = len(self.beams[0].tokens) + 1
        children = self._children(candidates, may_end=length > rules.min_tokens)
        is_last = length == rules.max_tokens
        ended = [c for c in children[: rules.width] if is_last or c.token.token_id in rules.end_ids]
        self._keep([self._grown(child) for child in ended], length)
        going = [c for c in children if not is_last and c.token.token_id not in rules.end_ids]
        self.beams = [self._grown(child) for child in going[: rules.width]]
        self.done = is_last or not self._can_improve(length)

    def _children(self, candidates: Sequence[Sequence[TokenLogprob]], *, may_end: bool) -> list[_Child]:
        """Return all continuations, best first."""
        children = [
            _Child(beam.score + token.logprob, place, token)
            for place, (beam, tokens) in enumerate(zip(self.beams, candidates, strict=True))
            for token in tokens
            if may_end or token.token_id not in self._rules.end_ids
        ]
        return sorted(children, key=lambda child: (-child.score, child.place, child.token.token_id))

    def _grown(self, child: _Child) -> Beam:
        return Beam(child.score, (*self.beams[child.place].tokens, child.token))

    def _keep(self, ended: list[Beam], length: int) -> None:
        rated = [Hypothesis(self._rate(beam.score, length), beam) for beam in ended]
        # A stable sort: of equal rates the one found earlier stays ahead.
        self.found = sorted(self.found + rated, key=lambda found: -found.rate)[: self._rules.width]

    def _can_improve(self, length: int) -> bool:
        rules = self._rules
        if len(self.found) < rules.width:
            return True
        if rules.early_stopping is True:
            return False
        # A longer output shares its loss among more tokens, if the penalty favours length at all.
        favours_length = rules.early_stopping == "never" and rules.length_penalty > 0
        best_length = rules.max_tokens if favours_length else length
        return self._rate(self.beams[0].score, best_length) > self.found[-1].rate

    def _rate(self, score: float, length: int) -> float:
        return score / math.pow(length, self._rules.length_penalty)
