"""previous_response_id: which items precede the input of a request?"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from starlette.requests import Request

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.response_store.off_loop import off_loop
from splitserve.frontend.response_store.records import Record
from splitserve.frontend.responses.context import ResponsesContext, is_response_id, needs_store, row_key
from splitserve.frontend.responses.kept.items import decode_items, output_items, request_items
from splitserve.frontend.responses.kept.memory import memory_of
from splitserve.frontend.responses.schema.items import InputItem
from splitserve.frontend.responses.schema.kept_bodies import KeptItem
from splitserve.frontend.responses.schema.request import ResponsesRequest
from splitserve.frontend.responses.schema.response import OutputItem, ResponseStatus
from splitserve.frontend.text.chat.messages import MAX_MESSAGES

_FIELD = "previous_response_id"
_CONTINUED = ("completed", "incomplete")


class Earlier(NamedTuple):
    """What precedes the input of a request.

    Attributes:
        kept: the items, as they are kept.
        given: the same, as a request has them.
        num_bytes: of their JSON.
    """

    kept: list[KeptItem]
    given: list[InputItem]
    num_bytes: int


class _Ended(msgspec.Struct):
    """What matters of a response that is continued."""

    status: ResponseStatus
    output: list[OutputItem]


async def earlier_items(context: ResponsesContext, request: Request, body: ResponsesRequest) -> Earlier:
    """Return the input of the previous response and its output; nothing if the request names none.

    Each record holds all of its conversation, so one is read, and the deletion of an earlier one ends no
    conversation. What the model's context can hold bounds what that takes.

    Raises:
        InvalidRequestError: there is no such response, or it cannot be continued.
        StoreUnavailableError: nobody can tell.
    """
    response_id = body.previous_response_id
    if response_id is None:
        return Earlier([], [], 0)
    memory = memory_of(request)
    if context.store is None and memory is None:
        raise needs_store(_FIELD)
    record = None
    if is_response_id(response_id):
        key = row_key(request, response_id)
        record = memory.get(key) if memory is not None else None
        if record is None and context.store is not None:
            record = await context.store.get(key)
    if record is None:
        raise InvalidRequestError(
            f"Previous response with id '{response_id}' not found.", _FIELD, "previous_response_not_found"
        )
    return await off_loop(record.num_bytes, lambda: _continued(record, body))


def _continued(record: Record, body: ResponsesRequest) -> Earlier:
    previous = msgspec.json.decode(record.response, type=_Ended)
    if previous.status not in _CONTINUED:
        raise InvalidRequestError(
            f"{_FIELD}: the response is {previous.status}, and only one that is {' or '.join(_CONTINUED)} "
            "can be continued",
            _FIELD,
        )
    items = [*decode_items(record.items), *output_items(previous.output)]
    num_given = 1 if isinstance(body.input, str) else len(body.input)
    if len(items) + num_given > MAX_MESSAGES:
        raise InvalidRequestError(
            f"{_FIELD}: its {len(items)} items and the {num_given} of input are more than {MAX_MESSAGES}",
            _FIELD,
        )
    return Earlier(items, request_items(items), record.num_bytes)
