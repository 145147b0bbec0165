"""POST /v1/responses: a chat's plan and run, answered as a response object or as its events."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from splitserve.frontend.http.dialect import OPENAI
from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.http.response.json_pieces import JsonPieces
from splitserve.frontend.http.response.sse import EventStream
from splitserve.frontend.openai.chat import choice_readers, plan_chat
from splitserve.frontend.openai.context import ApiContext, json_answer, read_struct
from splitserve.frontend.openai.generation_run import GenerationRun
from splitserve.frontend.openai.plan import Plan
from splitserve.frontend.openai.run_events import RunEvents
from splitserve.frontend.openai.schema.chat import ChatRequest
from splitserve.frontend.openai.schema.server_defaults import with_server_defaults
from splitserve.frontend.responses.event_writer import EventWriter
from splitserve.frontend.responses.output import Output
from splitserve.frontend.responses.schema.refused import REFUSED_RESPONSES, is_known
from splitserve.frontend.responses.schema.request import ResponsesRequest
from splitserve.frontend.responses.snapshot import Snapshot
from splitserve.frontend.responses.translation import NAMES, chat_request, own_words
from splitserve.frontend.responses.truncation import truncated_plan

decoder = BodyDecoder(ResponsesRequest, is_known)
# As OpenAI's other streams, but for the end, which the last event tells.
RESPONSES = replace(OPENAI, end=b"")


async def create_response(context: ApiContext, request: Request) -> Response:
    """Answer one request.

    Raises:
        SplitServeError: before the answer has begun; app.py makes the error response.
        ClientGoneError: the client hung up.
    """
    body = await read_struct(context, request, decoder, REFUSED_RESPONSES)
    if body.text is not None and body.text.verbosity not in (None, "medium"):
        request.state.log["ignored"] = "text.verbosity"
    with own_words():
        plan = await _plan(context, request, body)
    if body.stream:
        # Planned as a whole answer, since the last events hold all of it, but run as a stream.
        plan = replace(plan, body=msgspec.structs.replace(plan.body, stream=True))
    run = GenerationRun(context, request, plan)
    output = Output(choice_readers(plan, run))
    snapshot = Snapshot(body, plan, run, output)
    if body.stream:
        writer = EventWriter(snapshot, output)
        return EventStream(RunEvents(run, writer), context.keep_alive, context.slices, writer.failure)
    await run.collect(request, output.read)
    pieces = JsonPieces()
    return json_answer(context, pieces, snapshot.ended(pieces))


async def _plan(context: ApiContext, request: Request, body: ResponsesRequest) -> Plan[ChatRequest]:
    async def plan(chat: ChatRequest) -> Plan[ChatRequest]:
        planned, _ = await plan_chat(context, request, chat, "resp_")
        return replace(planned, names=NAMES)

    chat = with_server_defaults(chat_request(body), context.config)
    return await (truncated_plan(plan, chat) if body.truncation == "auto" else plan(chat))
