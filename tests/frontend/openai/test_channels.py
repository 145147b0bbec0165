"""Answers on channels, as gpt-oss writes them: content, reasoning and calls in chat, and what is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from splitserve.frontend.text.answers.detection import with_overrides
from splitserve.frontend.text.answers.formats import AnswerFormats
from tests.frontend.http.app_fixtures import ClientFactory
from tests.frontend.http.fake_pool import FakePool
from tests.frontend.http.response.sse_events import events, joined

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "hello"}
TOOLS = [{"type": "function", "function": {"name": "now"}}]
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>Four."
CALL = "<|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"


@pytest.fixture(autouse=True)
def harmony(pool: FakePool) -> None:
    pool.formats = with_overrides(AnswerFormats(), "harmony", "harmony")
    pool.text = THOUGHT + FINAL


async def answer(client: httpx.AsyncClient, **body: object) -> dict[str, Any]:
    response = await client.post(PATH, json={"messages": [USER]} | body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_an_answer_has_reasoning_and_content(client: httpx.AsyncClient) -> None:
    body = await answer(client)
    message = body["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ("Four.", "Hm.")
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}


async def test_a_call_is_a_tool_call(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.text = THOUGHT + CALL
    (choice,) = (await answer(client, tools=TOOLS))["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "now", "arguments": "{}"}
    assert (choice["message"]["content"], choice["message"]["reasoning"]) == (None, "Hm.")
    assert choice["finish_reason"] == "tool_calls"


async def test_a_stream_has_the_same(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.text = THOUGHT + FINAL + "<|end|>" + CALL
    response = await client.post(PATH, json={"messages": [USER], "tools": TOOLS, "stream": True})
    chunks = events(response.text)
    deltas = [each["delta"] for chunk in chunks for each in chunk["choices"]]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "Hm."
    assert joined(chunks) == "Four."
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call.get("name") for call in calls if "name" in call] == ["now"]
    assert "".join(call["arguments"] for call in calls) == "{}"


@pytest.mark.parametrize("opening", ["<|channel|>final<|message|>", "<|channel|>analysis<|message|>"])
async def test_the_prompt_may_have_begun_a_message(
    client: httpx.AsyncClient, pool: FakePool, opening: str
) -> None:
    pool.template.opening = opening
    pool.text = "Four.<|return|>"
    message = (await answer(client))["choices"][0]["message"]
    said = ("Four.", None) if "final" in opening else (None, "Four.")
    assert (message["content"], message["reasoning"]) == said


async def test_a_message_that_is_continued_is_content(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.text = " and four.<|return|>"
    messages = [USER, {"role": "assistant", "content": "Two"}]
    message = (await answer(client, messages=messages, continue_final_message=True))["choices"][0]["message"]
    assert message["content"] == " and four."


async def test_a_format_holds_what_is_said_on_the_last_channel(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    await answer(client, structured_outputs={"regex": "a"})
    pool.template.opening = "<|channel|>final<|message|>"
    await answer(client, structured_outputs={"regex": "a"})
    before, behind = (seen.request.grammar_context.reasoning for seen in pool.seen)
    assert before == (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        False,
        "<|channel|>final<|message|>",
    )
    assert behind is None


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "function": {"name": "now"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "auto",
                "tools": [{"type": "function", "function": {"name": "now"}}],
            },
        },
    ],
    ids=str,
)
async def test_calls_cannot_be_demanded(client: httpx.AsyncClient, pool: FakePool, choice: Any) -> None:
    response = await client.post(PATH, json={"messages": [USER], "tools": TOOLS, "tool_choice": choice})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "tool_choice")
    assert error["code"] == "unsupported_parameter"
    assert not pool.seen


async def test_a_form_goes_with_no_tools(client: httpx.AsyncClient, pool: FakePool) -> None:
    body = {"messages": [USER], "tools": TOOLS, "structured_outputs": {"regex": "a"}}
    response = await client.post(PATH, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "tools")
    await answer(client, tools=TOOLS, tool_choice="none", structured_outputs={"regex": "a"})


async def test_a_strict_tool_may_be_called(client: httpx.AsyncClient, pool: FakePool) -> None:
    tools = [{"type": "function", "function": {"name": "now", "strict": True}}]
    await answer(client, tools=tools)
    assert pool.seen[0].request.grammar_context.calls is None


async def test_an_operator_may_name_the_format(make_client: ClientFactory, pool: FakePool) -> None:
    pool.formats = AnswerFormats()
    pool.text = THOUGHT + CALL
    client = make_client(reasoning_parser="harmony", tool_call_parser="harmony")
    message = (await answer(client, tools=TOOLS))["choices"][0]["message"]
    assert message["reasoning"] == "Hm."
    assert len(message["tool_calls"]) == 1
