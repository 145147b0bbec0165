"""Answers on channels, as gpt-oss writes them: content, reasoning and calls in chat, and what holds them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from splitserve.frontend.text.answers.detection import with_overrides
from splitserve.frontend.text.answers.formats import AnswerFormats
from splitserve.frontend.text.call_grammar.demand import CallDemand
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


def demand(pool: FakePool) -> CallDemand:
    (seen,) = pool.seen
    found = seen.request.grammar_context.calls
    assert found is not None
    return found


NOW = {"type": "function", "function": {"name": "now"}}


@pytest.mark.parametrize(
    ("choice", "required", "several", "is_optional"),
    [
        ("auto", False, True, True),
        ("required", True, True, False),
        (NOW, True, False, False),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NOW]}}, False, True, False),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NOW]}}, True, True, False),
    ],
    ids=str,
)
async def test_calls_may_be_demanded(
    client: httpx.AsyncClient, pool: FakePool, choice: Any, required: bool, several: bool, is_optional: bool
) -> None:
    pool.text = THOUGHT + CALL
    (found,) = (await answer(client, tools=TOOLS, tool_choice=choice))["choices"]
    asked = demand(pool)
    assert (asked.tool_format, asked.required, asked.several) == ("harmony", required, several)
    assert (asked.is_optional, asked.begun) == (is_optional, "")
    assert found["finish_reason"] == ("stop" if choice == NOW else "tool_calls")


async def test_a_form_goes_with_tools(client: httpx.AsyncClient, pool: FakePool) -> None:
    await answer(client, tools=TOOLS, structured_outputs={"regex": "a"})
    assert not demand(pool).is_optional


async def test_a_strict_tool_is_held_to_its_schema(client: httpx.AsyncClient, pool: FakePool) -> None:
    await answer(client, tools=[{"type": "function", "function": {"name": "now", "strict": True}}])
    asked = demand(pool)
    assert (asked.tools[0].strict, asked.is_optional) == (True, False)


@pytest.mark.parametrize("channel", ["final", "analysis"])
async def test_a_demand_knows_which_message_the_prompt_has_begun(
    client: httpx.AsyncClient, pool: FakePool, channel: str
) -> None:
    pool.template.opening = f"<|channel|>{channel}<|message|>"
    await answer(client, tools=TOOLS, tool_choice="required")
    assert demand(pool).begun == channel


async def test_an_operator_may_name_the_format(make_client: ClientFactory, pool: FakePool) -> None:
    pool.formats = AnswerFormats()
    pool.text = THOUGHT + CALL
    client = make_client(reasoning_parser="harmony", tool_call_parser="harmony")
    message = (await answer(client, tools=TOOLS))["choices"][0]["message"]
    assert message["reasoning"] == "Hm."
    assert len(message["tool_calls"]) == 1
