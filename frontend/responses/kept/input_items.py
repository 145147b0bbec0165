"""GET /v1/responses/{id}/input_items: the input of a kept response, page by page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.openai.context import json_response
from splitserve.frontend.response_store.off_loop import off_loop
from splitserve.frontend.responses.context import ResponsesContext
from splitserve.frontend.responses.kept.handlers import find_record, read_integer
from splitserve.frontend.responses.kept.items import decode_items
from splitserve.frontend.responses.schema.kept_bodies import DEFAULT_PAGE, MAX_PAGE, ItemPage, KeptItem

_ORDERS = ("asc", "desc")


async def list_input_items(context: ResponsesContext, request: Request, response_id: str) -> Response:
    """Answer the request.

    Raises:
        HttpError: 404, there is no such response of the tenant.
        InvalidRequestError: a parameter has a wrong value.
        StoreUnavailableError: nobody can tell.
    """
    query = request.query_params
    limit, order = _limit(query), _order(query)
    _, _, record = await find_record(context, request, response_id)
    items = await off_loop(len(record.items), lambda: decode_items(record.items))
    if order == "desc":
        items.reverse()
    begin = _place(items, query, "after") + 1 if query.get("after") else 0
    end = _place(items, query, "before") if query.get("before") else len(items)
    page = items[begin:end][:limit]
    return json_response(
        ItemPage(
            data=page,
            has_more=max(0, end - begin) > len(page),
            first_id=page[0].id if page else None,
            last_id=page[-1].id if page else None,
        )
    )


def _limit(query: Mapping[str, str]) -> int:
    return read_integer(query.get("limit", str(DEFAULT_PAGE)), "limit", 1, MAX_PAGE)


def _order(query: Mapping[str, str]) -> str:
    order = query.get("order", "desc")
    if order not in _ORDERS:
        raise InvalidRequestError(f"order must be {' or '.join(_ORDERS)}, got {order[:64]!r}", "order")
    return order


def _place(items: Sequence[KeptItem], query: Mapping[str, str], name: str) -> int:
    cursor = query[name]
    for i, item in enumerate(items):
        if item.id == cursor:
            return i
    raise InvalidRequestError(f"{name}: no item of the input has the id {cursor[:128]!r}", name)
