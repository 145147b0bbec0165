"""Where an answer begins, by the end of its prompt or by the message that it goes on with."""

from __future__ import annotations

import pytest

from splitserve.frontend.text.answers.prompt_end import Beginning, beginning_of
from tests.frontend.text.answers.samples import THINK


@pytest.mark.parametrize(
    ("prompt_end", "expected"),
    [
        ("<|im_start|>assistant\n", Beginning.BEFORE),
        ("assistant\n<think>\n", Beginning.WITHIN),
        ("<think>", Beginning.WITHIN),
        ("assistant\n<think>\n\n</think>\n\n", Beginning.BEHIND),
        ("write <think> first<|im_end|>", Beginning.BEFORE),
        ("", Beginning.BEFORE),
    ],
)
def test_the_template_may_have_written_tags(prompt_end: str, expected: Beginning) -> None:
    assert beginning_of(THINK, prompt_end) is expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("<think>\nFirst,", Beginning.WITHIN),
        ("<think>\na\n</think>\n\nIt is", Beginning.BEHIND),
        ("It is", Beginning.BEHIND),
        ("", Beginning.BEFORE),
    ],
)
def test_a_message_that_is_continued_tells_by_its_own_tags(message: str, expected: Beginning) -> None:
    assert beginning_of(THINK, message, message) is expected
