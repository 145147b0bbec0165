"""What the kernel of suffixes should do, by plain search."""

from __future__ import annotations

from dataclasses import dataclass, field

from splitserve.worker.ops.drafts.suffixes import MAX_MATCHES, MIN_SUFFIX, SuffixLimits

LENGTHS = (2, 4, 8, 16)
MAX_CHANCES = 4


@dataclass(slots=True)
class Answer:
    owner: int
    tokens: list[int]
    was_used: bool = False


@dataclass(slots=True)
class Place:
    """In front of tokens[at], of an answer or, without one, of the row's own text."""

    tokens: list[int]
    at: int
    answer: Answer | None = None

    def following(self, drafts: list[int]) -> list[int]:
        """A row's text is continued by its own drafts."""
        return self.tokens[self.at :] + (drafts if self.answer is None else [])


@dataclass(slots=True)
class SuffixModel:
    """Answers, the oldest first, and what rows draft."""

    limits: SuffixLimits
    answers: list[Answer] = field(default_factory=list)

    def keep(self, owner: int, tokens: list[int]) -> None:
        tokens = tokens[-(self.limits.max_tokens // 4) :]
        if len(tokens) <= MIN_SUFFIX or self.limits.max_answers == 0 or owner == 0:
            return
        chances = MAX_CHANCES
        while len(self.answers) == self.limits.max_answers or self._num_tokens() + len(tokens) + 1 > (
            self.limits.max_tokens
        ):
            oldest = self.answers.pop(0)
            if oldest.was_used and chances > 0:
                chances -= 1
                self.answers.append(Answer(oldest.owner, oldest.tokens))
        self.answers.append(Answer(owner, tokens))

    def draft(self, text: list[int], num_known: int, owner: int, most: int) -> list[int]:
        """What stands behind text; of its own, the first num_known tokens are looked up."""
        own = [Place(text, at) for at in range(num_known - 1, MIN_SUFFIX - 1, -1)]
        others = [
            Place(answer.tokens, at, answer)
            for answer in reversed(self.answers)
            if answer.owner == owner != 0
            for at in range(len(answer.tokens) - 1, MIN_SUFFIX - 1, -1)
        ]
        drafts, expected, _ = self._go_on(own, text, most)
        theirs, more, answer = self._go_on(others, text, most)
        if more > expected:
            assert answer is not None
            answer.was_used = True
            return theirs
        return drafts

    def _num_tokens(self) -> int:
        return sum(len(answer.tokens) + 1 for answer in self.answers)

    def _go_on(
        self, places: list[Place], text: list[int], most: int
    ) -> tuple[list[int], float, Answer | None]:
        agreeing, length = self._longest(places, text, self.limits.max_depth - most)
        drafts: list[int] = []
        expected, answer, total = 0.0, None, len(agreeing)
        for i in range(min(most, int(self.limits.max_factor * length))):
            following = [place.following(drafts)[i : i + 1] for place in agreeing]
            tokens = [each[0] for each in following if each]
            if not tokens:
                break
            # max() takes the first of equals, the latest place.
            best = max(dict.fromkeys(tokens), key=tokens.count)
            if tokens.count(best) / total < self.limits.min_share:
                break
            agreeing = [place for place, each in zip(agreeing, following, strict=True) if each == [best]]
            drafts.append(best)
            expected += len(agreeing) / total
            answer = agreeing[0].answer
        return drafts, expected, answer

    def _longest(self, places: list[Place], text: list[int], longest: int) -> tuple[list[Place], int]:
        for shortest in reversed(LENGTHS):
            equal = [(place, _num_equal(place, text, longest)) for place in places]
            equal = [pair for pair in equal if pair[1] >= shortest][:MAX_MATCHES]
            if equal:
                length = max(pair[1] for pair in equal)
                return [place for place, count in equal if count == length], length
        return [], 0


def _num_equal(place: Place, text: list[int], most: int) -> int:
    count = 0
    while count < min(most, place.at, len(text)) and place.tokens[place.at - 1 - count] == text[-1 - count]:
        count += 1
    return count
