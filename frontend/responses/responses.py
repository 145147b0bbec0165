"""POST /v1/responses: a chat's plan and run, answered as a response object, as its events, or later."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.http.response.event_source import EventSource
from splitserve.frontend.http.response.json_pieces import JsonPieces
from splitserve.frontend.http.response.sse import EventStream
from splitserve.frontend.openai.chat import choice_readers, plan_chat
from splitserve.frontend.openai.context import ApiContext, json_answer, read_struct
from splitserve.frontend.openai.generation_run import GenerationRun
from splitserve.frontend.openai.plan import Plan
from splitserve.frontend.openai.run_events import RunEvents
from splitserve.frontend.openai.schema.chat import ChatRequest
from splitserve.frontend.openai.schema.server_defaults import with_server_defaults
from splitserve.frontend.response_store.off_loop import off_loop
from splitserve.frontend.responses.context import ResponsesContext, row_key
from splitserve.frontend.responses.event_writer import EventWriter
from splitserve.frontend.responses.kept.conversation import Earlier, earlier_items
from splitserve.frontend.responses.kept.events import KeptEvents
from splitserve.frontend.responses.kept.handlers import kept_stream
from splitserve.frontend.responses.kept.items import all_items
from splitserve.frontend.responses.kept.keeper import Keeper, store_of
from splitserve.frontend.responses.kept.memory import memory_of
from splitserve.frontend.responses.kept.unattended import UnattendedResponse, without_client
from splitserve.frontend.responses.output import Output
from splitserve.frontend.responses.schema.refused import REFUSED_RESPONSES, is_known
from splitserve.frontend.responses.schema.request import ResponsesRequest
from splitserve.frontend.responses.snapshot import Snapshot
from splitserve.frontend.responses.translation import NAMES, chat_request, own_words
from splitserve.frontend.responses.truncation import truncated_plan

decoder = BodyDecoder(ResponsesRequest, is_known)


async def create_response(context: ResponsesContext, request: Request) -> Response:
    """Answer one request.

    Raises:
        SplitServeError: before the answer has begun; app.py makes the error response.
        ClientGoneError: the client hung up.
    """
    body = await read_struct(context.api, request, decoder, REFUSED_RESPONSES)
    if body.text is not None and body.text.verbosity not in (None, "medium"):
        request.state.log["ignored"] = "text.verbosity"
    store = store_of(context, request, body)
    earlier = await earlier_items(context, request, body)
    with own_words():
        plan = await _plan(context, request, body, earlier)
    keeper = None
    if store is not None or memory_of(request) is not None:
        # A token is about four bytes.
        num_bytes = earlier.num_bytes + 4 * len(plan.prompts[0].token_ids)
        items = await off_loop(num_bytes, lambda: all_items(body.input, earlier.kept))
        key = row_key(request, plan.head.id)
        keeper = Keeper(store, key, items, request, body)
    return await _answer(context, request, body, plan, keeper)


async def _answer(
    context: ResponsesContext,
    request: Request,
    body: ResponsesRequest,
    plan: Plan[ChatRequest],
    keeper: Keeper | None,
) -> Response:
    api = context.api
    if body.background:
        request.state.log |= {"id": plan.head.id, "background": True}
        request = without_client(request)
    if body.stream:
        # Planned as a whole answer, since the last events hold all of it, but run as a stream.
        plan = replace(plan, body=msgspec.structs.replace(plan.body, stream=True))
    run = GenerationRun(api, request, plan)
    output = Output(choice_readers(plan, run))
    snapshot = Snapshot(body, plan, run, output, is_kept=keeper is not None and keeper.is_stored)
    if body.background and keeper is not None and context.background is not None:
        writer = EventWriter(snapshot, output, with_end=False) if body.stream else None
        response = UnattendedResponse(request, run, output, snapshot, keeper, api.slices, writer)
        queued = await context.background.start(response)
        return kept_stream(context, response.key, -1) if body.stream else _json(queued)
    if body.stream:
        return _stream(api, run, output, snapshot, keeper)
    await run.collect(request, output.read)
    if keeper is not None:
        return _json(await keeper.keep(snapshot, api.slices))
    pieces = JsonPieces()
    return json_answer(api, pieces, snapshot.ended(pieces))


def _stream(
    api: ApiContext, run: GenerationRun, output: Output, snapshot: Snapshot, keeper: Keeper | None
) -> Response:
    writer = EventWriter(snapshot, output, with_end=keeper is None)
    events: EventSource = RunEvents(run, writer)
    if keeper is not None:
        events = KeptEvents(RunEvents(run, writer), writer, snapshot, keeper, api.slices)
    return EventStream(events, api.keep_alive, api.slices, writer.failure)


def _json(response: bytes) -> Response:
    return Response(response, media_type="application/json")


async def _plan(
    context: ResponsesContext, request: Request, body: ResponsesRequest, earlier: Earlier
) -> Plan[ChatRequest]:
    async def plan(chat: ChatRequest) -> Plan[ChatRequest]:
        planned, _ = await plan_chat(context.api, request, chat, "resp_")
        return replace(planned, names=NAMES)

    chat = with_server_defaults(chat_request(body, context.seal, earlier.given), context.api.config)
    return await (truncated_plan(plan, chat) if body.truncation == "auto" else plan(chat))
