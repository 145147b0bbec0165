"""/v1/batches: batches are made, listed, shown and cancelled; frontend.batches.run works on them."""

from __future__ import annotations

import re
import uuid

from starlette.requests import Request
from starlette.responses import Response

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.batches.context import BatchesContext, key_of, not_found, read_page, tenant_of
from splitserve.frontend.batches.schema.batches import (
    DEFAULT_PAGE,
    MAX_PAGE,
    BatchObject,
    BatchPage,
    BatchRequest,
    KeptBatch,
)
from splitserve.frontend.batches.store.batches import BatchRow
from splitserve.frontend.batches.store.tables import Key
from splitserve.frontend.http.errors import HttpError
from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.openai.context import json_response, read_struct
from splitserve.frontend.openai.schema.unsupported import known_beside

decoder = BodyDecoder(BatchRequest, known_beside({}))

_UNITS_S = {"m": 60, "h": 3600, "d": 86400}
_MAX_WINDOW_S = 14 * 86400


async def create_batch(context: BatchesContext, request: Request) -> Response:
    """Answer POST /v1/batches.

    Raises:
        InvalidRequestError: a field has a wrong value, or the file is none of requests.
        HttpError: 404, there is no such file, or no store.
        FileStoreUnavailableError: it cannot be kept.
    """
    body = await read_struct(context.api, request, decoder, {})
    store = context.store
    window_s = _window_s(body.completion_window)
    input_file = await store.files.get(key_of(request, body.input_file_id, "file"))
    if input_file is None:
        raise not_found(body.input_file_id, "file")
    if input_file.purpose != "batch":
        raise InvalidRequestError('input_file_id: its purpose is not "batch"', "input_file_id")
    now_s = int(store.clock())
    batch = BatchObject(
        id=f"batch_{uuid.uuid4().hex}",
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        completion_window=body.completion_window,
        status="validating",
        created_at=now_s,
        expires_at=now_s + window_s,
        metadata=body.metadata,
    )
    expiry = body.output_expires_after
    kept = KeptBatch(batch=batch, output_ttl_s=expiry.seconds if expiry is not None else 0)
    # It is shown for as long as its files may be.
    lives_s = window_s + max(context.api.config.file_ttl_s, kept.output_ttl_s)
    row = await store.batches.add(Key(tenant_of(request), batch.id), kept, now_s + lives_s)
    context.wake()
    return json_response(row.shown())


async def list_batches(context: BatchesContext, request: Request) -> Response:
    """Answer GET /v1/batches.

    Raises:
        InvalidRequestError: a parameter has a wrong value.
        HttpError, FileStoreUnavailableError: there is no store, or it does not answer.
    """
    page = read_page(request.query_params, DEFAULT_PAGE, MAX_PAGE)
    found = await context.store.batches.page(tenant_of(request), page)
    shown = [row.shown() for row in found[: page.limit]]
    return json_response(
        BatchPage(
            data=shown,
            has_more=len(found) > page.limit,
            first_id=shown[0].id if shown else None,
            last_id=shown[-1].id if shown else None,
        )
    )


async def get_batch(context: BatchesContext, request: Request, batch_id: str) -> Response:
    """Answer GET /v1/batches/{id}; raises HttpError 404, and as list_batches()."""
    return json_response((await _find(context, key_of(request, batch_id, "batch"))).shown())


async def cancel_batch(context: BatchesContext, request: Request, batch_id: str) -> Response:
    """Answer POST /v1/batches/{id}/cancel.

    Raises:
        HttpError: 404, there is none; 409, it has ended.
        FileStoreUnavailableError: nobody can tell.
    """
    key = key_of(request, batch_id, "batch")
    row = await _find(context, key)
    if not await context.store.batches.cancel(key):
        status = row.shown().status
        raise HttpError(409, "batch_ended", f"A batch that is {status} cannot be cancelled.")
    context.wake()
    return json_response((await _find(context, key)).shown())


async def _find(context: BatchesContext, key: Key) -> BatchRow:
    row = await context.store.batches.get(key)
    if row is None:
        raise not_found(key.id, "batch")
    return row


def _window_s(text: str) -> int:
    found = re.fullmatch(r"([1-9][0-9]{0,4})([mhd])", text, re.ASCII)
    window_s = int(found[1]) * _UNITS_S[found[2]] if found is not None else 0
    if not 0 < window_s <= _MAX_WINDOW_S:
        raise InvalidRequestError(
            f"completion_window must be minutes, hours or days, such as 24h, up to 14d, got {text[:64]!r}",
            "completion_window",
        )
    return window_s
