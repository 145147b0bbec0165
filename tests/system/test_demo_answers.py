"""The demo model as a newcomer meets it: served by our own kernels, asked through the SDK, greedily."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import OpenAI

from training.questions import FIRST_QUESTIONS, HELD_OUT, Question, is_right

pytestmark = pytest.mark.system


def answer_of(client: OpenAI, model: str, question: Question) -> str:
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question.text}], temperature=0, max_tokens=200
    )
    return answer.choices[0].message.content or ""


@pytest.mark.parametrize("questions", [FIRST_QUESTIONS, HELD_OUT], ids=["first", "held-out"])
def test_nine_of_ten_questions_of_its_domain_are_answered_right(
    client: OpenAI, model: str, questions: list[Question]
) -> None:
    with ThreadPoolExecutor(len(questions)) as pool:
        answers = list(pool.map(lambda question: answer_of(client, model, question), questions))
    wrong = [
        (question.text, answer)
        for question, answer in zip(questions, answers, strict=True)
        if not is_right(question, answer)
    ]
    assert len(wrong) <= len(questions) // 10, wrong
