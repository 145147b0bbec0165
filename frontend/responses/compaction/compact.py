"""POST /v1/responses/compact: the model summarizes a conversation, which can go on from the summary."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.http.errors import HttpError
from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.openai.chat import choice_readers, plan_chat
from splitserve.frontend.openai.context import ApiContext, json_response, read_struct
from splitserve.frontend.openai.generation_run import GenerationRun
from splitserve.frontend.openai.models import find_model
from splitserve.frontend.openai.plan import Plan
from splitserve.frontend.openai.schema.chat import ChatRequest
from splitserve.frontend.openai.schema.unsupported import known_beside
from splitserve.frontend.response_store.off_loop import off_loop
from splitserve.frontend.responses.compaction.latest_messages import latest_messages
from splitserve.frontend.responses.context import ResponsesContext
from splitserve.frontend.responses.kept.conversation import earlier_items
from splitserve.frontend.responses.kept.items import kept_items
from splitserve.frontend.responses.output import Output
from splitserve.frontend.responses.schema.compaction import (
    REFUSED_COMPACTION,
    CompactedResponse,
    CompactionRequest,
)
from splitserve.frontend.responses.schema.request import ResponsesRequest
from splitserve.frontend.responses.schema.response import CompactionItem
from splitserve.frontend.responses.snapshot import response_usage
from splitserve.frontend.responses.translation import NAMES, chat_request, own_words
from splitserve.frontend.responses.truncation import truncated_plan
from splitserve.frontend.text.chat.messages import ChatMessage
from splitserve.frontend.text.chat.thinking import thinking_variables

decoder = BodyDecoder(CompactionRequest, known_beside(REFUSED_COMPACTION))

MAX_SUMMARY_TOKENS = 2048
# Part of the context that a summary may take, and the user's latest messages beside it.
_PART = 4
_ID_BYTES = 16
_ASKED = (
    "Summarize our conversation up to here. You will go on from your summary without the conversation, so "
    "keep everything that is still needed: what was asked for and agreed, facts, names, numbers, code, "
    "results of tools, and what is left to do. Answer with the summary alone."
)


async def compact_conversation(context: ResponsesContext, request: Request) -> Response:
    """Answer one request.

    Raises:
        SplitServeError: as create_response(), or the model wrote no summary.
        ClientGoneError: the client hung up.
    """
    compaction = await read_struct(context.api, request, decoder, REFUSED_COMPACTION)
    body = _conversation(compaction)
    earlier = await earlier_items(context, request, body)
    with own_words():
        chat = chat_request(body, context.seal, earlier.given)
        plan = await _plan(context.api, request, chat)
    run = GenerationRun(context.api, request, plan)
    output = Output(choice_readers(plan, run))
    await run.collect(request, output.read)
    sealed = CompactionItem(
        id=f"cmp_{secrets.token_hex(_ID_BYTES)}", encrypted_content=context.seal.seal(_summary(output))
    )
    num_bytes = earlier.num_bytes + len(plan.prompts[0].token_ids) * 4
    items = await off_loop(num_bytes, lambda: kept_items(body.input, earlier.kept))
    messages = latest_messages(items, plan.model.assets.max_model_len)
    return json_response(
        CompactedResponse(
            id=plan.head.id,
            created_at=plan.head.created,
            output=[*messages, sealed],
            usage=response_usage(run),
        )
    )


def _conversation(compaction: CompactionRequest) -> ResponsesRequest:
    if compaction.input is None and compaction.previous_response_id is None:
        raise InvalidRequestError(
            "There is nothing to compact without input or previous_response_id",
            "input",
            "missing_required_parameter",
        )
    return ResponsesRequest(
        model=compaction.model,
        input=compaction.input or [],
        instructions=compaction.instructions,
        previous_response_id=compaction.previous_response_id,
        cache_salt=compaction.cache_salt,
        priority=compaction.priority,
        timeout=compaction.timeout,
    )


async def _plan(api: ApiContext, request: Request, chat: ChatRequest) -> Plan[ChatRequest]:
    """Return the plan of the summary; of a conversation that leaves no room for it, of its latest turns."""
    model = await find_model(api, chat.model)
    asking = msgspec.structs.replace(
        chat,
        temperature=0.0,
        max_completion_tokens=max(1, min(MAX_SUMMARY_TOKENS, model.assets.max_model_len // _PART)),
        # What it thinks about its summary is not part of it.
        chat_template_kwargs=dict(thinking_variables(thinks=False)),
    )

    async def plan(shorter: ChatRequest) -> Plan[ChatRequest]:
        asked = msgspec.structs.replace(shorter, messages=_asking(shorter.messages))
        planned, _ = await plan_chat(api, request, asked, "resp_")
        return replace(planned, names=NAMES)

    return await truncated_plan(plan, asking)


def _asking(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the conversation with what asks for its summary, in the user's turn if it is that."""
    *others, last = messages
    if last.role != "user":
        return [*messages, ChatMessage(role="user", content=_ASKED)]
    return [*others, ChatMessage(role="user", content="\n\n".join([*last.texts(), _ASKED]))]


def _summary(output: Output) -> str:
    found = "".join(item.text for item in output.items if item.kind == "message").strip()
    if output.finish_reason == "abort":
        raise HttpError(500, "request_failed", "the engine ended the request")
    if not found:
        raise HttpError(500, "no_summary", "the model wrote nothing but reasoning, or nothing at all")
    return found
