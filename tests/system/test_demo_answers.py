"""The demo model as a newcomer meets it: served by our own kernels, asked through the SDK, greedily."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import OpenAI

from training.questions import FIRST_QUESTIONS, HELD_OUT, Question, is_right
from training.tools.questions import HELD_OUT_TOOLS, ToolQuestion, is_right_use

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


def told_or_called(client: OpenAI, model: str, question: ToolQuestion) -> str:
    """Return the answer as the model writes it: its text, then its calls between their tags."""
    answer = client.chat.completions.create(
        model=model,
        messages=question.messages(),
        tools=question.tools,
        temperature=0,
        max_tokens=200,
    )
    message = answer.choices[0].message
    text = message.content or ""
    for call in message.tool_calls or ():
        assert call.type == "function"
        made = call.function
        text += f'<tool_call>\n{{"name": "{made.name}", "arguments": {made.arguments}}}\n</tool_call>'
    return text


def test_nine_of_ten_unseen_tool_questions_are_answered_right(client: OpenAI, model: str) -> None:
    with ThreadPoolExecutor(len(HELD_OUT_TOOLS)) as pool:
        answers = list(pool.map(lambda question: told_or_called(client, model, question), HELD_OUT_TOOLS))
    wrong = [
        (question.text, answer)
        for question, answer in zip(HELD_OUT_TOOLS, answers, strict=True)
        if not is_right_use(question, answer)
    ]
    assert len(wrong) <= 2, wrong


def test_reasoning_comes_apart_from_the_answer_when_it_is_asked_for(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        extra_body={"chat_template_kwargs": {"enable_thinking": True}},
        temperature=0,
        max_tokens=100,
    )
    message = answer.choices[0].message
    assert message.content == "The capital of France is Paris."
    assert getattr(message, "reasoning", "").startswith("The user asks about a capital.")
