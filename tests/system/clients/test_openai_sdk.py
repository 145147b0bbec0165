"""OpenAI's SDK and its helpers: tools from pydantic models, parsed answers, streams, agent loops, async."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.system.clients.weather import (
    FUNCTION,
    MAX_TOKENS,
    QUESTION,
    TOOL,
    USER,
    City,
    Place,
    get_weather,
)
from tests.system.processes import Server

pytestmark = pytest.mark.system


class GetWeather(BaseModel):
    """Get the weather of a city."""

    city: City
    unit: City | None


STRICT = openai.pydantic_function_tool(GetWeather)
FLAT = {"type": "function", **FUNCTION, "strict": True}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
# Several calls might not fit into MAX_TOKENS.
ONE_CALL: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


@pytest.fixture
async def async_client(server: Server) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.base_url, api_key="unused", max_retries=0, timeout=60) as sdk:
        yield sdk


@pytest.fixture
def asked(model: str) -> dict[str, Any]:
    return {"model": model, "messages": [USER], "max_tokens": MAX_TOKENS}


@pytest.fixture
def asked_response(model: str) -> dict[str, Any]:
    return {"model": model, "input": QUESTION, "max_output_tokens": MAX_TOKENS}


@pytest.mark.parametrize(
    ("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop"), (ALLOWED, "tool_calls")], ids=str
)
def test_a_demanded_call_is_run_and_its_result_answered(
    client: OpenAI, asked: dict[str, Any], choice: Any, reason: str
) -> None:
    first = client.chat.completions.create(
        **asked, tools=[TOOL], **ONE_CALL | {"tool_choice": choice}
    ).choices[0]
    assert first.finish_reason == reason
    (call,) = first.message.tool_calls
    content = get_weather(**json.loads(call.function.arguments))
    result = {"role": "tool", "tool_call_id": call.id, "content": content}
    asked["messages"] = [USER, first.message, result]
    second = client.chat.completions.create(**asked, tools=[TOOL], tool_choice="none").choices[0]
    assert (second.message.tool_calls, second.message.content is None) == (None, False)


def test_calls_are_parsed_into_their_models(client: OpenAI, asked: dict[str, Any]) -> None:
    answer = client.chat.completions.parse(**asked, tools=[STRICT], **ONE_CALL)
    parsed = [call.function.parsed_arguments for call in answer.choices[0].message.tool_calls]
    assert {type(each) for each in parsed} == {GetWeather}


def test_an_answer_is_parsed_into_its_model(client: OpenAI, asked: dict[str, Any]) -> None:
    choice = client.chat.completions.parse(**asked, response_format=Place).choices[0]
    assert isinstance(choice.message.parsed, Place)
    assert choice.finish_reason == "stop"


def test_an_answer_that_is_cut_off_is_told_from_a_wrong_one(client: OpenAI, asked: dict[str, Any]) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**asked | {"max_tokens": 2}, response_format=Place)


def test_a_stream_of_calls_is_parsed(client: OpenAI, asked: dict[str, Any]) -> None:
    with client.chat.completions.stream(**asked, tools=[STRICT], **ONE_CALL) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    calls = final.message.tool_calls
    assert {type(call.function.parsed_arguments) for call in calls} == {GetWeather}
    assert final.finish_reason == "tool_calls"
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [event.arguments for event in done] == [call.function.arguments for call in calls]


def test_a_stream_of_an_answer_is_parsed_and_tells_its_usage(client: OpenAI, asked: dict[str, Any]) -> None:
    usage = {"include_usage": True}
    with client.chat.completions.stream(**asked, response_format=Place, stream_options=usage) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Place)
    (done,) = (event for event in events if event.type == "content.done")
    assert done.content == final.choices[0].message.content
    assert final.usage.completion_tokens > 0


def test_tools_and_a_format_of_the_answer_go_together(client: OpenAI, asked: dict[str, Any]) -> None:
    answer = client.chat.completions.parse(
        **asked, tools=[STRICT], response_format=Place, parallel_tool_calls=False
    )
    message = answer.choices[0].message
    calls = [call.function.parsed_arguments for call in message.tool_calls or ()]
    assert {type(each) for each in calls or [message.parsed]} in ({GetWeather}, {Place})


async def test_the_async_client_does_the_same(async_client: AsyncOpenAI, asked: dict[str, Any]) -> None:
    chat = async_client.chat.completions
    parsed = (await chat.parse(**asked, response_format=Place)).choices[0].message.parsed
    assert isinstance(parsed, Place)
    async with chat.stream(**asked, tools=[STRICT], **ONE_CALL) as stream:
        async for _ in stream:
            pass
        calls = (await stream.get_final_completion()).choices[0].message.tool_calls
    assert {type(call.function.parsed_arguments) for call in calls} == {GetWeather}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}], ids=str)
def test_a_response_calls_and_is_given_the_result(
    client: OpenAI, asked_response: dict[str, Any], choice: Any
) -> None:
    first = client.responses.create(**asked_response, tools=[FLAT], **ONE_CALL | {"tool_choice": choice})
    (call,) = first.output
    output = get_weather(**json.loads(call.arguments))
    result = {"type": "function_call_output", "call_id": call.call_id, "output": output}
    asked_response["input"] = [USER, *first.output, result]
    second = client.responses.create(**asked_response, tools=[FLAT], tool_choice="none")
    assert {item.type for item in second.output} == {"message"}


def test_a_response_is_parsed_into_its_model(client: OpenAI, asked_response: dict[str, Any]) -> None:
    response = client.responses.parse(**asked_response, text_format=Place)
    assert isinstance(response.output_parsed, Place)


def test_a_stream_of_a_response_is_parsed(client: OpenAI, asked_response: dict[str, Any]) -> None:
    with client.responses.stream(**asked_response, text_format=Place) as stream:
        types = {event.type for event in stream}
        final = stream.get_final_response()
    assert isinstance(final.output_parsed, Place)
    assert {"response.output_text.delta", "response.output_text.done", "response.completed"} <= types


def test_a_stream_of_a_response_has_parsed_calls(client: OpenAI, asked_response: dict[str, Any]) -> None:
    tool = openai.pydantic_function_tool(GetWeather)
    with client.responses.stream(**asked_response, tools=[tool], **ONE_CALL) as stream:
        events = list(stream)
        final = stream.get_final_response()
    calls = [item for item in final.output if item.type == "function_call"]
    assert {type(call.parsed_arguments) for call in calls} == {GetWeather}
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [event.arguments for event in done] == [call.arguments for call in calls]


def test_tools_and_a_format_of_the_text_go_together(client: OpenAI, asked_response: dict[str, Any]) -> None:
    response = client.responses.parse(
        **asked_response, tools=[FLAT], text_format=Place, parallel_tool_calls=False
    )
    calls = [item for item in response.output if item.type == "function_call"]
    assert calls or isinstance(response.output_parsed, Place)


async def test_the_async_client_streams_responses(
    async_client: AsyncOpenAI, asked_response: dict[str, Any]
) -> None:
    async with async_client.responses.stream(**asked_response, text_format=Place) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert isinstance(final.output_parsed, Place)
