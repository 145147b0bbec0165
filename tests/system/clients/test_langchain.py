"""LangChain's ChatOpenAI, of both of OpenAI's APIs, and ChatAnthropic: tools, structured output, streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.system.clients.weather import (
    COUNT,
    MAX_TOKENS,
    QUESTION,
    Arguments,
    Note,
    Place,
    get_weather,
)
from tests.system.processes import Server

langchain_openai = pytest.importorskip("langchain_openai")
langchain_anthropic = pytest.importorskip("langchain_anthropic")

pytestmark = [
    pytest.mark.system,
    # Of what OpenAI's SDK parses into a field of which it does not know the type.
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings"),
]


def chat(server: Server, model: str) -> Any:
    return langchain_openai.ChatOpenAI(
        model=model, base_url=server.base_url, api_key="unused", max_retries=0, max_tokens=MAX_TOKENS
    )


def responses(server: Server, model: str) -> Any:
    return langchain_openai.ChatOpenAI(
        model=model,
        base_url=server.base_url,
        api_key="unused",
        max_retries=0,
        max_tokens=MAX_TOKENS,
        use_responses_api=True,
    )


def messages(server: Server, model: str) -> Any:
    return langchain_anthropic.ChatAnthropic(
        model=model, base_url=server.url, api_key="unused", max_retries=0, max_tokens=MAX_TOKENS
    )


@pytest.fixture(params=[chat, responses, messages], ids=lambda make: make.__name__)
def llm(server: Server, model: str, request: pytest.FixtureRequest) -> Any:
    make: Callable[[Server, str], Any] = request.param
    return make(server, model)


@pytest.fixture
def tool() -> Any:
    from langchain_core.tools import tool

    return tool(get_weather, args_schema=Arguments)


@pytest.mark.parametrize("choice", ["any", "get_weather"])
@pytest.mark.parametrize("strict", [None, True])
def test_a_demanded_call_is_run_and_its_result_answered(
    llm: Any, tool: Any, choice: str, strict: bool | None
) -> None:
    from langchain_core.messages import HumanMessage

    offered = llm.bind_tools([tool], tool_choice=choice, strict=strict, parallel_tool_calls=False)
    conversation: list[Any] = [HumanMessage(QUESTION)]
    called = offered.invoke(conversation)
    (call,) = called.tool_calls
    assert called.invalid_tool_calls == []
    conversation += [called, tool.invoke(call)]
    assert llm.invoke(conversation).tool_calls == []


def test_streamed_calls_add_up(llm: Any, tool: Any) -> None:
    offered = llm.bind_tools([tool], tool_choice="any", parallel_tool_calls=False)
    chunks = list(offered.stream(QUESTION))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    (call,) = whole.tool_calls
    assert tool.invoke(call).status == "success"
    assert len(chunks) > 2


def test_streamed_text_is_the_text_at_once(llm: Any) -> None:
    greedy = {"extra_body": {"temperature": 0}}
    parts = [chunk.text for chunk in llm.stream(COUNT, **greedy)]
    assert "".join(parts) == llm.invoke(COUNT, **greedy).text
    assert len(parts) > 2


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_an_answer_is_of_its_model(llm: Any, method: str) -> None:
    structured = llm.with_structured_output(Place, method=method)
    assert isinstance(structured.invoke(QUESTION), Place)
    assert isinstance(list(structured.stream(QUESTION))[-1], Place)


@pytest.mark.parametrize("make", [chat, responses])
def test_json_mode_gives_an_object(
    server: Server, model: str, make: Callable[[Server, str], Any], empty_object: dict[str, int]
) -> None:
    structured = make(server, model).with_structured_output(Note, method="json_mode")
    assert structured.invoke(QUESTION, extra_body={"logit_bias": empty_object}) == Note()


@pytest.mark.parametrize("make", [chat, responses])
def test_tools_and_a_format_of_the_answer_go_together(
    server: Server, model: str, make: Callable[[Server, str], Any], tool: Any
) -> None:
    structured = make(server, model).with_structured_output(
        Place,
        method="json_schema",
        include_raw=True,
        tools=[tool],
        strict=True,
        parallel_tool_calls=False,
    )
    answer = structured.invoke(QUESTION)
    assert answer["raw"].tool_calls or isinstance(answer["parsed"], Place)


# LangChain keeps one async client for all models at one address: it lives in the loop of its first request.
@pytest.mark.asyncio(loop_scope="module")
async def test_async_calls_and_structured_output(llm: Any, tool: Any) -> None:
    offered = llm.bind_tools([tool], tool_choice="any", parallel_tool_calls=False)
    assert len((await offered.ainvoke(QUESTION)).tool_calls) == 1
    assert isinstance(await llm.with_structured_output(Place, method="json_schema").ainvoke(QUESTION), Place)
