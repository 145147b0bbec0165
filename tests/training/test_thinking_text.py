"""Is what the model thinks true, and does it come before the answer?"""

from __future__ import annotations

from random import Random

import pytest

from training.corpus import conversations
from training.thinking import columns, thoughtful
from training.trials import ends_with, is_json, trials


@pytest.mark.parametrize(
    ("left", "operation", "right", "expected"),
    [
        (47, "plus", 38, "Ones: 7 plus 8 is 15. Tens: 4 plus 3 plus 1 is 8. So it is 85."),
        (21, "plus", 8, "Ones: 1 plus 8 is 9. Tens: 2 plus 0 is 2. So it is 29."),
        (99, "plus", 99, "Ones: 9 plus 9 is 18. Tens: 9 plus 9 plus 1 is 19. So it is 198."),
        (52, "minus", 17, "Ones: 12 minus 7 is 5. Tens: 5 minus 1 minus 1 is 3. So it is 35."),
        (48, "minus", 6, "Ones: 8 minus 6 is 2. Tens: 4 minus 0 is 4. So it is 42."),
    ],
)
def test_sums_are_done_column_by_column(left: int, operation: str, right: int, expected: str) -> None:
    assert columns(left, operation, right) == expected


def test_every_thought_ends_in_an_answer() -> None:
    rng = Random(1)
    for _ in range(200):
        exchange, thought = thoughtful(rng)
        assert exchange.question.strip()
        assert exchange.answer.strip()
        assert thought.endswith(".")


def test_some_conversations_think_before_their_last_turn_and_only_there() -> None:
    thinking = 0
    for conversation in conversations(7, 1000):
        *before, last = conversation.messages
        assert not any("reasoning_content" in message for message in before)
        thinking += "reasoning_content" in last
    assert 20 < thinking < 200


def test_the_trials_are_many_and_always_the_same() -> None:
    first, second = trials(), trials()
    assert {name: [each.label for each in group] for name, group in first.items()} == {
        name: [each.label for each in group] for name, group in second.items()
    }
    assert all(len(group) >= 20 for group in first.values())


def test_a_trial_is_judged_by_what_follows_the_reasoning() -> None:
    assert ends_with("5 plus 6 is 11.", "<think>\nOnes.\n</think>\n5 plus 6 is 11.")
    assert ends_with("5 plus 6 is 11.", "5 plus 6 is 11.")
    assert not ends_with("5 plus 6 is 11.", "5 plus 6 is 12.")


def test_json_is_compared_as_a_value() -> None:
    assert is_json({"a": 1}, '{"a":1}')
    assert not is_json({"a": 1}, '{"a":2}')
    assert not is_json({"a": 1}, "a is 1")
