"""pydantic-ai's agents over both of OpenAI's APIs and Anthropic's: tools, and all ways to a typed output."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.system.clients.weather import MAX_TOKENS, QUESTION, RESULT, City, Note, Place, get_weather
from tests.system.processes import Server

pydantic_ai = pytest.importorskip("pydantic_ai")

pytestmark = pytest.mark.system

# Several calls might not fit into MAX_TOKENS.
SETTINGS: dict[str, Any] = {"max_tokens": MAX_TOKENS, "parallel_tool_calls": False}


def chat(server: Server, model: str) -> Any:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=server.base_url, api_key="unused")
    return OpenAIChatModel(model, provider=provider)


def responses(server: Server, model: str) -> Any:
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=server.base_url, api_key="unused")
    return OpenAIResponsesModel(model, provider=provider)


def messages(server: Server, model: str) -> Any:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(base_url=server.url, api_key="unused")
    # What it can do is known by the names of Anthropic's models.
    return AnthropicModel(model, provider=provider, profile={"supports_json_schema_output": True})


@pytest.fixture(params=[chat, responses, messages], ids=lambda make: make.__name__)
async def llm(server: Server, model: str, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    make: Callable[[Server, str], Any] = request.param
    async with make(server, model) as opened:
        yield opened


def demanding_one_call() -> Any:
    """A capability of an agent that has to call a tool first, and may not later."""
    from pydantic_ai.capabilities import AbstractCapability

    class OneCall(AbstractCapability):  # type: ignore[misc]
        def get_model_settings(self) -> Callable[[Any], dict[str, Any]]:
            return lambda context: {"tool_choice": "required" if context.run_step == 1 else "none"}

    return OneCall()


def kinds(result: Any) -> list[str]:
    return [part.part_kind for message in result.all_messages() for part in message.parts]


async def test_an_agent_calls_its_tool_and_answers(llm: Any) -> None:
    agent = pydantic_ai.Agent(
        llm, tools=[get_weather], model_settings=SETTINGS, capabilities=[demanding_one_call()]
    )
    result = await agent.run(QUESTION)
    assert kinds(result) == ["user-prompt", "tool-call", "tool-return", "text"]
    assert result.usage.requests == 2


async def test_an_agent_streams_the_answer_behind_its_call(llm: Any) -> None:
    ran: list[City] = []

    def get_weather(city: City) -> str:
        """Get the weather of a city."""
        ran.append(city)
        return RESULT

    agent = pydantic_ai.Agent(
        llm, tools=[get_weather], model_settings=SETTINGS, capabilities=[demanding_one_call()]
    )
    async with agent.run_stream(QUESTION) as stream:
        texts = [text async for text in stream.stream_text(debounce_by=None)]
    assert len(ran) == 1
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))


@pytest.mark.parametrize("way", ["ToolOutput", "NativeOutput"])
async def test_an_output_is_of_its_model(llm: Any, way: str) -> None:
    output = getattr(pydantic_ai, way)(Place)
    agent = pydantic_ai.Agent(llm, output_type=output, model_settings=SETTINGS)
    assert isinstance((await agent.run(QUESTION)).output, Place)
    async with agent.run_stream(QUESTION) as stream:
        assert isinstance(await stream.get_output(), Place)


@pytest.mark.parametrize("llm", [chat, responses], indirect=True)
async def test_a_prompted_output_is_json(llm: Any, empty_object: dict[str, int]) -> None:
    settings = SETTINGS | {"extra_body": {"logit_bias": empty_object}}
    output = pydantic_ai.PromptedOutput(Note)
    agent = pydantic_ai.Agent(llm, output_type=output, model_settings=settings)
    assert (await agent.run(QUESTION)).output == Note()


async def test_a_tool_is_called_before_the_output(llm: Any) -> None:
    from pydantic_ai.capabilities import PrepareOutputTools, PrepareTools

    def later(context: Any, tools: list[Any]) -> list[Any]:
        return [] if context.run_step == 1 else tools

    def first(context: Any, tools: list[Any]) -> list[Any]:
        return tools if context.run_step == 1 else []

    agent = pydantic_ai.Agent(
        llm,
        tools=[get_weather],
        output_type=pydantic_ai.ToolOutput(Place),
        model_settings=SETTINGS,
        capabilities=[PrepareTools(first), PrepareOutputTools(later)],
    )
    result = await agent.run(QUESTION)
    assert kinds(result)[:3] == ["user-prompt", "tool-call", "tool-return"]
    assert isinstance(result.output, Place)


async def test_tools_and_a_native_output_go_together(llm: Any) -> None:
    agent = pydantic_ai.Agent(
        llm,
        tools=[get_weather],
        output_type=pydantic_ai.NativeOutput(Place),
        model_settings=SETTINGS,
        capabilities=[demanding_one_call()],
    )
    result = await agent.run(QUESTION)
    assert kinds(result) == ["user-prompt", "tool-call", "tool-return", "text"]
    assert isinstance(result.output, Place)
