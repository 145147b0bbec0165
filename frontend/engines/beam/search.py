"""Which beams are kept, which outputs are complete, and when is a beam search done? No I/O.

The rules are those of transformers' `generate` with num_beams, without sampling:

* Every step scores each continuation of each beam by the sum of its logprobs. Those among the best `width`
  that end are complete outputs; the best `width` that do not end become the next beams.
* A complete output's score is its sum / length ** length_penalty; the `width` outputs with the best scores
  are kept.
* Once `width` outputs are found, early_stopping decides whether to keep searching for better ones.

Equal sums are ordered by beam, best first, then by lower token id; equal scores by which output was found
first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from splitserve.frontend.engines.generation import TokenLogprob


@dataclass(slots=True, frozen=True)
class SearchRules:
    """The parameters of a search.

    Attributes:
        width: number of beams and of outputs kept; at least 1.
        max_tokens: longest output, in tokens; at least 1.
        end_ids: tokens that end an output.
        min_tokens: fewest tokens before an end token.
        length_penalty: exponent of the length in scores.
        early_stopping: True ends the search as soon as `width` outputs are found; False when the best beam,
            scored at its current length, is no better than the worst of them; "never" when it could not be
            better at any length.
    """

    width: int
    max_tokens: int
    end_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    @property
    def num_candidates(self) -> int:
        """Candidates needed per beam: even if every end token is among them, `width` others remain."""
        return self.width + len(self.end_ids)


class Beam(NamedTuple):
    """An unfinished output and the sum of its logprobs."""

    score: float
    tokens: tuple[TokenLogprob, ...]


class Hypothesis(NamedTuple):
    """A complete output and its score."""

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
        beams: the current beams, best first; at most `width`, at the start one with no tokens.
        found: complete outputs so far, best first; at most `width`, and exactly `width` when done.
        done: the search is over.
    """

    def __init__(self, rules: SearchRules) -> None:
        self.beams = [Beam(0.0, ())]
        self.found: list[Hypothesis] = []
        self.done = False
        self._rules = rules

    def advance(self, candidates: Sequence[Sequence[TokenLogprob]]) -> None:
        """Advance the search by one step.

        Args:
            candidates: per beam its num_candidates most probable next tokens, in any order. Fields other than
                id and logprob are kept for the output.
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
        # A stable sort: of equal scores the one found earlier stays ahead.
        self.found = sorted(self.found + rated, key=lambda found: -found.rate)[: self._rules.width]

    def _can_improve(self, length: int) -> bool:
        rules = self._rules
        if len(self.found) < rules.width:
            return True
        if rules.early_stopping is True:
            return False
        # A longer output spreads its negative sum over more tokens, if the penalty favours length at all.
        favours_length = rules.early_stopping == "never" and rules.length_penalty > 0
        best_length = rules.max_tokens if favours_length else length
        return self._rate(self.beams[0].score, best_length) > self.found[-1].rate

    def _rate(self, score: float, length: int) -> float:
        return score / math.pow(length, self._rules.length_penalty)
