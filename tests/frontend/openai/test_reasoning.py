"""Reasoning apart from content: fields, streams, usage, and where an answer begins within it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from splitserve.frontend.text.answers.detection import with_overrides
from splitserve.frontend.text.answers.formats import REASONING_FORMATS, AnswerFormats, ReasoningFormat
from splitserve.frontend.text.chat.thinking import EFFORTS
from splitserve.frontend.text.grammar.context import GrammarContext, Reasoning
from tests.frontend.http.app_fixtures import ClientFactory
from tests.frontend.http.fake_pool import FakePool
from tests.frontend.http.response.sse_events import events, joined

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "hello"}
TEXT = "<think>\nTwo and two.\n</think>\n\nFour."
NUM_REASONING = len("Two and two.")


@pytest.fixture(autouse=True)
def thinking(pool: FakePool) -> None:
    pool.formats = with_overrides(AnswerFormats(), "think", "hermes")
    pool.text = TEXT


async def answer(client: httpx.AsyncClient, **body: object) -> dict[str, Any]:
    response = await client.post(PATH, json={"messages": [USER]} | body)
    assert response.status_code == 200, response.text
    return response.json()


async def stream(client: httpx.AsyncClient, **body: object) -> list[dict[str, Any]]:
    response = await client.post(PATH, json={"messages": [USER], "stream": True} | body)
    assert response.status_code == 200, response.text
    return events(response.text)


def reasoning_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    deltas = [each["delta"] for chunk in chunks for each in chunk["choices"] if each["index"] == index]
    assert all(delta.get("reasoning") == delta.get("reasoning_content") for delta in deltas)
    return "".join(delta.get("reasoning", "") for delta in deltas)


async def test_reasoning_has_two_names_and_no_tags(client: httpx.AsyncClient) -> None:
    (choice,) = (await answer(client))["choices"]
    message = choice["message"]
    assert message["content"] == "Four."
    assert message["reasoning"] == message["reasoning_content"] == "Two and two."
    assert choice["finish_reason"] == "stop"


async def test_a_stream_gives_reasoning_and_then_content(client: httpx.AsyncClient) -> None:
    for n in (1, 2):
        chunks = await stream(client, n=n)
        assert [(reasoning_of(chunks, i), joined(chunks, i)) for i in range(n)] == [
            ("Two and two.", "Four.")
        ] * n
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_usage_counts_the_tokens_of_reasoning(client: httpx.AsyncClient) -> None:
    usage = (await answer(client))["usage"]
    assert usage["completion_tokens"] == len(TEXT)
    assert usage["completion_tokens_details"] == {"reasoning_tokens": NUM_REASONING}
    twice = (await answer(client, n=2))["usage"]["completion_tokens_details"]
    assert twice == {"reasoning_tokens": 2 * NUM_REASONING}
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await stream(client, stream_options=options)
    assert chunks[-1]["usage"] == usage
    counts = [chunk["usage"]["completion_tokens_details"]["reasoning_tokens"] for chunk in chunks]
    assert counts == sorted(counts)


async def test_reasoning_can_be_left_out(client: httpx.AsyncClient) -> None:
    body = await answer(client, include_reasoning=False)
    message = body["choices"][0]["message"]
    assert (message["content"], message["reasoning"], message["reasoning_content"]) == ("Four.", None, None)
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": NUM_REASONING}
    chunks = await stream(client, include_reasoning=False)
    assert (reasoning_of(chunks), joined(chunks)) == ("", "Four.")


async def test_an_answer_cut_off_in_its_reasoning_has_no_content(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    pool.text = "<think>Two and"
    message = (await answer(client))["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == (None, "Two and")


async def test_the_template_may_have_opened_the_reasoning(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.template.opening = "<think>\n"
    pool.text = "Two and two.\n</think>\n\nFour."
    message = (await answer(client))["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ("Four.", "Two and two.")


async def test_behind_reasoning_that_the_template_closed_all_is_content(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    pool.template.opening = "<think>\n\n</think>\n\n"
    pool.text = "<think> is a tag."
    body = await answer(client)
    assert body["choices"][0]["message"]["content"] == pool.text
    assert "completion_tokens_details" not in body["usage"]


async def test_a_continued_message_goes_on_with_its_reasoning(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    pool.text = " and two.</think>Four."
    messages = [USER, {"role": "assistant", "content": "<think>Two"}]
    body = await answer(client, messages=messages, continue_final_message=True, echo=True)
    message = body["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ("<think>TwoFour.", "and two.")


async def test_reasoning_and_calls_come_together(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.text = '<think>Ask.</think>\n\n<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    choice = (await answer(client, tools=[{"function": {"name": "now"}}]))["choices"][0]
    assert (choice["message"]["content"], choice["message"]["reasoning"]) == (None, "Ask.")
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "now"
    assert choice["finish_reason"] == "tool_calls"


async def test_prompt_logprobs_and_token_ids_come_along(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, prompt_logprobs=0, logprobs=True, return_token_ids=True)
    assert chunks[1]["prompt_logprobs"][0] is None
    choices = [chunk["choices"][0] for chunk in chunks[1:]]
    assert bytes(token for each in choices for token in each["token_ids"]).decode() == TEXT
    assert sum(len(each["logprobs"]["content"]) for each in choices if each["logprobs"]) == len(TEXT)


async def test_an_operator_may_leave_reasoning_in_the_text(make_client: ClientFactory) -> None:
    body = await answer(make_client(reasoning_parser="none"))
    assert body["choices"][0]["message"]["content"] == TEXT
    assert body["choices"][0]["message"]["reasoning"] is None


async def test_completions_are_not_taken_apart(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/completions", json={"prompt": "x"})
    assert response.json()["choices"][0]["text"] == TEXT


@pytest.mark.parametrize("effort", EFFORTS)
async def test_the_effort_is_told_to_the_template(
    client: httpx.AsyncClient, pool: FakePool, effort: str
) -> None:
    await answer(client, reasoning_effort=effort)
    thinks = effort != "none"
    assert pool.template.calls[-1][1].variables == {
        "reasoning_effort": effort,
        "enable_thinking": thinks,
        "thinking": thinks,
    }


async def test_variables_of_the_request_go_before_its_effort(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    await answer(
        client, reasoning_effort="low", chat_template_kwargs={"enable_thinking": False, "date": "today"}
    )
    assert pool.template.calls[-1][1].variables == {
        "reasoning_effort": "low",
        "enable_thinking": False,
        "thinking": True,
        "date": "today",
    }


@pytest.mark.parametrize("effort", ["most", "", 3])
async def test_an_effort_that_nobody_knows_is_refused_with_those_there_are(
    client: httpx.AsyncClient, effort: object
) -> None:
    response = await client.post(PATH, json={"messages": [USER], "reasoning_effort": effort})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "reasoning_effort")
    assert "reasoning_effort" in error["message"]


async def test_tokenize_counts_the_prompt_of_an_effort(client: httpx.AsyncClient, pool: FakePool) -> None:
    response = await client.post("/tokenize", json={"messages": [USER], "reasoning_effort": "none"})
    assert response.status_code == 200, response.text
    assert pool.template.calls[-1][1].variables == {
        "reasoning_effort": "none",
        "enable_thinking": False,
        "thinking": False,
    }


TOKENS = ReasoningFormat("tokens", "<|256|>", "<|257|>")


@pytest.mark.parametrize("fields", [{}, {"structured_outputs": {"regex": "a"}, "n": 2, "stream": True}])
async def test_a_budget_of_reasoning_reaches_the_pool(
    client: httpx.AsyncClient, pool: FakePool, fields: dict[str, Any]
) -> None:
    pool.formats = AnswerFormats(TOKENS)
    for num_tokens in (0, 7, 2**31 - 1):
        body = {"messages": [USER], "thinking_token_budget": num_tokens} | fields
        response = await client.post(PATH, json=body)
        assert response.status_code == 200, response.text
        request = pool.seen[-1].request
        assert request.sampling.thinking_token_budget == num_tokens
        assert request.grammar_context == GrammarContext(
            "", Reasoning(TOKENS.begin, TOKENS.end, is_open=False)
        )


@pytest.mark.parametrize("formats", [AnswerFormats(), AnswerFormats(REASONING_FORMATS[0])])
async def test_a_budget_that_the_model_cannot_keep_is_refused(
    client: httpx.AsyncClient, pool: FakePool, formats: AnswerFormats
) -> None:
    # The fake tokenizer has no token <think>.
    pool.formats = formats
    response = await client.post(PATH, json={"messages": [USER], "thinking_token_budget": 3})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "thinking_token_budget")
    assert error["code"] == "unsupported_parameter"
    assert not pool.seen


@pytest.mark.parametrize("value", [-1, 2**31, 1.5, "3", True])
async def test_a_budget_out_of_range_is_refused(
    client: httpx.AsyncClient, pool: FakePool, value: object
) -> None:
    pool.formats = AnswerFormats(TOKENS)
    response = await client.post(PATH, json={"messages": [USER], "thinking_token_budget": value})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "thinking_token_budget")
    assert "thinking_token_budget" in error["message"]


async def test_a_budget_goes_with_no_beam_search(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.formats = AnswerFormats(TOKENS)
    body = {"messages": [USER], "thinking_token_budget": 3, "use_beam_search": True}
    error = (await client.post(PATH, json=body)).json()["error"]
    assert error["param"] == "thinking_token_budget"
