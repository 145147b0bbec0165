"""POST /v1/messages and /v1/messages/count_tokens: a chat's plan and run, answered in Anthropic's words."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from splitserve.frontend.anthropic.answer import stop_of, usage_of
from splitserve.frontend.anthropic.blocks import Blocks
from splitserve.frontend.anthropic.event_writer import EventWriter
from splitserve.frontend.anthropic.schema.refused import REFUSED_MESSAGES, is_known, is_known_to_count
from splitserve.frontend.anthropic.schema.request import CountTokensRequest, MessagesRequest
from splitserve.frontend.anthropic.schema.response import Message, TextBlock, TokenCount
from splitserve.frontend.anthropic.translation import NAMES, chat_request, own_words, prompt_request
from splitserve.frontend.engines.generation import OutputDelta
from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.http.response.sse import EventStream
from splitserve.frontend.openai.chat import chat_prompt, choice_readers, plan_chat
from splitserve.frontend.openai.context import ApiContext, json_response, read_struct
from splitserve.frontend.openai.generation_run import GenerationRun
from splitserve.frontend.openai.models import find_model
from splitserve.frontend.openai.plan import Plan
from splitserve.frontend.openai.run_events import RunEvents
from splitserve.frontend.openai.schema.chat import ChatRequest

decoder = BodyDecoder(MessagesRequest, is_known)
count_decoder = BodyDecoder(CountTokensRequest, is_known_to_count)


async def create_message(context: ApiContext, request: Request) -> Response:
    """Answer one request.

    Raises:
        SplitServeError: before the answer has begun; app.py makes the error response.
        ClientGoneError: the client hung up.
    """
    body = await read_struct(context, request, decoder, REFUSED_MESSAGES)
    with own_words():
        chat = await _without_vain_budget(context, chat_request(body))
        plan, _ = await plan_chat(context, request, chat, "msg_")
    plan = _as_message(plan)
    run = GenerationRun(context, request, plan)
    if body.stream:
        writer = EventWriter(plan.head, run, choice_readers(plan, run))
        return EventStream(RunEvents(run, writer), context.keep_alive, context.slices)
    return json_response(await _message(request, plan, run))


def _as_message(plan: Plan[ChatRequest]) -> Plan[ChatRequest]:
    """Return a plan whose errors and ends are worded as Anthropic does: a call by name is a use of a tool."""
    reading = plan.reading and replace(plan.reading, call_reason="tool_calls")
    return replace(plan, names=NAMES, reading=reading)


async def _without_vain_budget(context: ApiContext, chat: ChatRequest) -> ChatRequest:
    """Return a chat without the budget of reasoning that its model never writes: clients send one to any."""
    if chat.thinking_token_budget is None:
        return chat
    formats = context.answer_formats(await find_model(context, chat.model))
    return (
        chat if formats.reasoning is not None else msgspec.structs.replace(chat, thinking_token_budget=None)
    )


async def _message(request: Request, plan: Plan[ChatRequest], run: GenerationRun) -> Message:
    readers, blocks = choice_readers(plan, run), Blocks()
    finish_reason: str | None = None

    def add(delta: OutputDelta) -> None:
        nonlocal finish_reason
        if readers is not None:
            blocks.add(readers.read(delta))
            finish_reason = readers.finish_reason(delta)

    (choice,) = await run.collect(request, add if readers is not None else None)
    stop = stop_of(choice.finish_reason if readers is None else finish_reason, choice.stop_reason)
    return Message(
        id=plan.head.id,
        model=plan.head.model,
        content=[TextBlock("".join(choice.texts))] if readers is None else blocks.content(),
        stop_reason=stop.stop_reason,
        stop_sequence=stop.stop_sequence,
        usage=usage_of(run.usage),
    )


async def count_tokens(context: ApiContext, request: Request) -> Response:
    """Answer how many tokens a request's prompt has, which is encoded as if it ran.

    Raises:
        SplitServeError: as create_message().
    """
    body = await read_struct(context, request, count_decoder, REFUSED_MESSAGES)
    with own_words():
        prompt = await chat_prompt(context, prompt_request(body))
    return json_response(TokenCount(len(prompt.token_ids)))
