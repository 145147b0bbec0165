"""GET, DELETE and POST .../cancel of /v1/responses/{id}: what is kept of a response, and its end.

A response whose process is gone has failed; whoever looks first writes that down.
"""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.http.dialect import ErrorDetail, note_dialect
from splitserve.frontend.http.response.sse import EventStream
from splitserve.frontend.openai.context import json_response
from splitserve.frontend.response_store.records import Record
from splitserve.frontend.response_store.rows import RowKey
from splitserve.frontend.response_store.store import ResponseStore
from splitserve.frontend.responses.context import (
    RESPONSES,
    ResponsesContext,
    is_response_id,
    no_such_response,
    row_key,
)
from splitserve.frontend.responses.kept.replay import EventReplay
from splitserve.frontend.responses.schema.kept_bodies import MAX_NUMBER, DeletedResponse
from splitserve.frontend.responses.schema.response import ResponseObject
from splitserve.frontend.responses.snapshot import response_error

_GONE = response_error(
    ErrorDetail(
        "The server process that generated this response has ended; ask again.", "server_error", None, None
    )
)
_decode = msgspec.json.Decoder(ResponseObject).decode


async def get_response(context: ResponsesContext, request: Request, response_id: str) -> Response:
    """Answer GET /v1/responses/{id}.

    Raises:
        HttpError: 404, there is none of the tenant.
        InvalidRequestError: its events are asked for, and are not kept; or a parameter has a wrong value.
        StoreUnavailableError: nobody can tell.
    """
    streams, after = _asked_events(request)
    store, key, record = await find_record(context, request, response_id)
    if not streams:
        return _answer(await _current(store, key, record))
    if not record.has_events:
        raise InvalidRequestError(
            "stream: only a response that was created with background: true and stream: true has its events "
            "kept",
            "stream",
        )
    note_dialect(request.scope, {request.scope["path"]: RESPONSES})
    return kept_stream(context, key, after)


def kept_stream(context: ResponsesContext, key: RowKey, after: int) -> Response:
    """Return the events of a kept response.

    Args:
        context: with a store.
        key: of the response.
        after: number of the last event that the client has; -1 for none.
    """
    store = context.store
    assert store is not None, "it is kept somewhere"
    source = EventReplay(store, key, after, partial(_current, store, key))
    return EventStream(source, context.api.keep_alive, context.api.slices, source.failure)


def _asked_events(request: Request) -> tuple[bool, int]:
    """Return whether events are asked for, and after which number."""
    query = request.query_params
    stream, after = query.get("stream", "false").lower(), query.get("starting_after")
    if stream not in ("true", "false"):
        raise InvalidRequestError(f"stream must be true or false, got {stream[:64]!r}", "stream")
    if after is None:
        return stream == "true", -1
    if stream != "true":
        raise InvalidRequestError("starting_after requires stream=true", "starting_after")
    return True, read_integer(after, "starting_after", 0, MAX_NUMBER)


def read_integer(text: str, name: str, low: int, high: int) -> int:
    """Return an integer of the query.

    Raises:
        InvalidRequestError: it is none, or out of range.
    """
    found = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else low - 1
    if not low <= found <= high:
        raise InvalidRequestError(f"{name} must be an integer from {low} to {high}, got {text[:64]!r}", name)
    return found


async def delete_response(context: ResponsesContext, request: Request, response_id: str) -> Response:
    """Answer DELETE /v1/responses/{id}; one that is being generated is cancelled.

    Raises:
        HttpError, StoreUnavailableError: as get_response().
    """
    if context.store is None or not is_response_id(response_id):
        raise no_such_response(response_id, context)
    key = row_key(request, response_id)
    if not await context.store.delete(key):
        raise no_such_response(response_id, context)
    if context.background is not None:
        context.background.cancel(key)
    return json_response(DeletedResponse(id=response_id))


async def cancel_response(context: ResponsesContext, request: Request, response_id: str) -> Response:
    """Answer POST /v1/responses/{id}/cancel; one that has ended is returned as it is.

    Raises:
        HttpError, StoreUnavailableError: as get_response().
        InvalidRequestError: it is none of the background.
    """
    store, key, record = await find_record(context, request, response_id)
    record = await _current(store, key, record)
    response = _decode(record.response)
    if not response.background:
        raise InvalidRequestError("Cannot cancel a synchronous response.", "response_id")
    if not record.owner:
        return _answer(record)
    ended = msgspec.structs.replace(response, status="cancelled")
    record = await _end(store, key, record, ended)
    if context.background is not None:
        context.background.cancel(key)
    return _answer(record)


async def find_record(
    context: ResponsesContext, request: Request, response_id: str
) -> tuple[ResponseStore, RowKey, Record]:
    """Return a kept response of a request's tenant, and where it is.

    Raises:
        HttpError: 404, there is none.
        StoreUnavailableError: nobody can tell.
    """
    if context.store is not None and is_response_id(response_id):
        key = row_key(request, response_id)
        record = await context.store.get(key)
        if record is not None:
            return context.store, key, record
    raise no_such_response(response_id, context)


async def _current(store: ResponseStore, key: RowKey, record: Record) -> Record:
    """Return a record as it is, or ended if its process is gone."""
    if not record.owner or await store.is_alive(record.owner):
        return record
    ended = msgspec.structs.replace(_decode(record.response), status="failed", error=_GONE)
    return await _end(store, key, record, ended)


async def _end(store: ResponseStore, key: RowKey, record: Record, ended: ResponseObject) -> Record:
    """End a response that a process works on; return its record, or as what it has ended meanwhile."""
    made = record._replace(response=msgspec.json.encode(ended), owner="")
    if await store.replace(key, made, record.owner):
        return made
    return await store.get(key) or made


def _answer(record: Record) -> Response:
    return Response(record.response, media_type="application/json")
