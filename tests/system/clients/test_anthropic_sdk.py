"""Anthropic's SDK and its helpers: tool loops, its tool runner, parsed answers, streams, async."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from anthropic import Anthropic, AsyncAnthropic, beta_async_tool, beta_tool

from tests.system.clients.weather import MAX_TOKENS, RESULT, SCHEMA, USER, City, Place, get_weather
from tests.system.processes import Server

pytestmark = pytest.mark.system

TOOL = {"name": "get_weather", "description": "Get the weather of a city.", "input_schema": SCHEMA}
# Several uses might not fit into MAX_TOKENS.
ANY = {"type": "any", "disable_parallel_tool_use": True}
NAMED = {"type": "tool", "name": "get_weather"}


@pytest.fixture
async def async_claude(server: Server) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=60) as sdk:
        yield sdk


@pytest.fixture
def asked(model: str) -> dict[str, Any]:
    return {"model": model, "messages": [USER], "max_tokens": MAX_TOKENS}


def prompt_tokens(message: Any) -> int:
    cached: int = message.usage.cache_read_input_tokens or 0
    return message.usage.input_tokens + cached


@pytest.mark.parametrize("choice", [ANY, NAMED], ids=str)
def test_a_demanded_use_is_run_and_its_result_answered(
    claude: Anthropic, asked: dict[str, Any], choice: Any
) -> None:
    first = claude.messages.create(**asked, tools=[TOOL], tool_choice=choice)
    (use,) = first.content
    assert (use.type, first.stop_reason) == ("tool_use", "tool_use")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": get_weather(**use.input)}
    asked["messages"] = [
        USER,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = claude.messages.create(**asked, tools=[TOOL], tool_choice={"type": "none"})
    assert {block.type for block in second.content} == {"text"}


def test_a_stream_of_uses_adds_up(claude: Anthropic, asked: dict[str, Any]) -> None:
    with claude.messages.stream(**asked, tools=[TOOL], tool_choice=ANY) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    assert snapshots[-1] == final.content[-1].input
    assert get_weather(**final.content[-1].input) == RESULT


def test_counted_tokens_include_the_tools(claude: Anthropic, asked: dict[str, Any]) -> None:
    message = claude.messages.create(**asked, tools=[TOOL], tool_choice=ANY)
    del asked["max_tokens"]
    plain = claude.messages.count_tokens(**asked)
    counted = claude.messages.count_tokens(**asked, tools=[TOOL], tool_choice=ANY)
    assert plain.input_tokens < counted.input_tokens == prompt_tokens(message)


@pytest.mark.parametrize("stream", [False, True])
def test_the_tool_runner_runs_tools_and_keeps_the_conversation(
    claude: Anthropic, asked: dict[str, Any], stream: bool
) -> None:
    ran: list[City] = []

    def get_weather(city: City) -> str:
        """Get the weather of a city."""
        ran.append(city)
        return RESULT

    # The runner begins with a thread, which the server has to refuse in the words that it understands.
    runner: Any = claude.beta.messages.tool_runner(
        **asked, tools=[beta_tool(get_weather)], tool_choice=NAMED, max_iterations=2, stream=stream
    )
    messages = [each.get_final_message() if stream else each for each in runner]
    assert [message.stop_reason for message in messages] == ["tool_use"] * 2
    assert len(ran) == sum(len(message.content) for message in messages)
    first, second = map(prompt_tokens, messages)
    assert second > first


async def test_the_async_tool_runner_ends_with_an_answer(
    async_claude: AsyncAnthropic, asked: dict[str, Any]
) -> None:
    async def get_weather(city: City) -> str:
        """Get the weather of a city."""
        runner.set_messages_params(lambda params: {**params, "tool_choice": {"type": "none"}})
        return RESULT

    tools = [beta_async_tool(get_weather)]
    runner: Any = async_claude.beta.messages.tool_runner(**asked, tools=tools, tool_choice=NAMED)
    answer = await runner.until_done()
    assert {block.type for block in answer.content} == {"text"}


@pytest.mark.parametrize("beta", [False, True])
def test_an_answer_is_parsed_into_its_model(claude: Anthropic, asked: dict[str, Any], beta: bool) -> None:
    api: Any = claude.beta.messages if beta else claude.messages
    message = api.parse(**asked, output_format=Place)
    assert isinstance(message.parsed_output, Place)
    assert message.stop_reason == "end_turn"


def test_a_stream_of_an_answer_is_parsed(claude: Anthropic, asked: dict[str, Any]) -> None:
    with claude.messages.stream(**asked, output_format=Place) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert Place.model_validate_json(text) == final.content[0].parsed_output


def test_tools_and_a_format_of_the_answer_go_together(claude: Anthropic, asked: dict[str, Any]) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    message = claude.messages.parse(**asked, tools=[TOOL], tool_choice=choice, output_format=Place)
    assert message.stop_reason == "tool_use" or isinstance(message.parsed_output, Place)


async def test_the_async_client_parses_and_streams(
    async_claude: AsyncAnthropic, asked: dict[str, Any]
) -> None:
    message = await async_claude.messages.parse(**asked, output_format=Place)
    assert isinstance(message.parsed_output, Place)
    async with async_claude.messages.stream(**asked, tools=[TOOL], tool_choice=ANY) as stream:
        final = await stream.get_final_message()
    assert final.stop_reason == "tool_use"
