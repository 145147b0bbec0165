"""/v1/files: files are uploaded, listed, shown, read and deleted."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.batches.context import BatchesContext, key_of, not_found, read_page, tenant_of
from splitserve.frontend.batches.schema.batches import MAX_EXPIRY_S, MIN_EXPIRY_S
from splitserve.frontend.batches.schema.files import MAX_PAGE, PURPOSES, DeletedFile, FileObject, FilePage
from splitserve.frontend.batches.store.errors import FileStoreUnavailableError
from splitserve.frontend.batches.store.files import PIECE_BYTES, FileRow, StoredFiles
from splitserve.frontend.batches.store.store import FileStore
from splitserve.frontend.batches.store.tables import Key
from splitserve.frontend.batches.upload import UploadForm, form_of
from splitserve.frontend.http.errors import HttpError
from splitserve.frontend.openai.context import json_response

UPLOAD_TIMEOUT_S = 600.0
# Each holds a piece of its file.
MAX_UPLOADS = 16
_KNOWN_FIELDS = frozenset(("purpose", "expires_after[anchor]", "expires_after[seconds]"))


class Uploads:
    """The uploads of this process."""

    def __init__(self, context: BatchesContext) -> None:
        self._context = context
        self._num_open = 0

    async def create_file(self, request: Request) -> Response:
        """Answer POST /v1/files.

        Raises:
            HttpError: 413, it is too large, or does not fit into the store; 429, there are too many uploads;
                as BodyReceiver.receive().
            InvalidRequestError: the form is none, or a field has a wrong value.
            FileStoreUnavailableError: it cannot be kept.
        """
        if self._num_open >= MAX_UPLOADS:
            raise HttpError(429, "overloaded", "This server takes too many uploads; try again shortly.", 1.0)
        store = self._context.store
        self._num_open += 1
        key = Key(tenant_of(request), f"file-{uuid.uuid4().hex}")
        try:
            row = await self._receive(request, store, key)
        except BaseException:
            # What cannot be deleted now expires.
            with contextlib.suppress(FileStoreUnavailableError):
                await asyncio.shield(store.files.delete(key))
            raise
        finally:
            self._num_open -= 1
        return json_response(_shown(row))

    async def _receive(self, request: Request, store: FileStore, key: Key) -> FileRow:
        stream = request.stream()
        # What the layers around it refuse is refused first.
        first = await anext(stream)
        form, number = form_of(request), 0
        await _check_room(store, int(request.headers.get("content-length", "0")))
        form.write(first)
        await store.files.begin(key, "batch", "")
        async for chunk in stream:
            form.write(chunk)
            if piece := form.take(PIECE_BYTES):
                self._check_size(form)
                await store.files.append(key, number, piece)
                number += 1
        form.end()
        self._check_size(form)
        ttl_s = _read_fields(form) or self._context.api.config.file_ttl_s
        if piece := form.take():
            await store.files.append(key, number, piece)
        await _check_room(store, 0)
        return await store.files.finish(key, form.file_name or "upload", ttl_s)

    def _check_size(self, form: UploadForm) -> None:
        most = self._context.api.config.max_file_bytes
        if form.num_bytes > most:
            raise HttpError(413, "file_too_large", f"A file may have at most {most} bytes.")


async def _check_room(store: FileStore, num_bytes: int) -> None:
    if not await store.has_room(num_bytes):
        raise HttpError(
            413,
            "file_store_full",
            f"All files together may have at most {store.max_bytes} bytes (--file-store-bytes), "
            "and this one does not fit: delete others.",
        )


def _read_fields(form: UploadForm) -> int:
    """Check the fields beside the file; return after how many seconds it expires, 0 if none says so."""
    fields = form.fields
    if unknown := fields.keys() - _KNOWN_FIELDS:
        name = min(unknown)[:64]
        raise InvalidRequestError(f"{name}: there is no such field", name, "unsupported_parameter")
    purpose = fields.get("purpose")
    if purpose is None:
        raise InvalidRequestError("purpose is missing", "purpose", "missing_required_parameter")
    if purpose != "batch":
        raise InvalidRequestError(f'purpose may only be "batch" here, got {purpose[:64]!r}', "purpose")
    if "expires_after[anchor]" not in fields and "expires_after[seconds]" not in fields:
        return 0
    if fields.get("expires_after[anchor]") != "created_at":
        raise InvalidRequestError('expires_after.anchor must be "created_at"', "expires_after.anchor")
    text = fields.get("expires_after[seconds]", "")
    seconds = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    if not MIN_EXPIRY_S <= seconds <= MAX_EXPIRY_S:
        raise InvalidRequestError(
            f"expires_after.seconds must be an integer from {MIN_EXPIRY_S} to {MAX_EXPIRY_S}",
            "expires_after.seconds",
        )
    return seconds


async def list_files(context: BatchesContext, request: Request) -> Response:
    """Answer GET /v1/files.

    Raises:
        InvalidRequestError: a parameter has a wrong value.
        HttpError, FileStoreUnavailableError: there is no store, or it does not answer.
    """
    query = request.query_params
    page, purpose = read_page(query, MAX_PAGE, MAX_PAGE), query.get("purpose", "")
    if purpose and purpose not in PURPOSES:
        raise InvalidRequestError(f"purpose may be {' or '.join(PURPOSES)}, got {purpose[:64]!r}", "purpose")
    found = await context.store.files.page(tenant_of(request), purpose, page)
    shown = [_shown(row) for row in found[: page.limit]]
    return json_response(
        FilePage(
            data=shown,
            has_more=len(found) > page.limit,
            first_id=shown[0].id if shown else None,
            last_id=shown[-1].id if shown else None,
        )
    )


async def get_file(context: BatchesContext, request: Request, file_id: str) -> Response:
    """Answer GET /v1/files/{id}; raises HttpError 404, and as list_files()."""
    return json_response(_shown(await find_file(context.store, key_of(request, file_id, "file"))))


async def get_content(context: BatchesContext, request: Request, file_id: str) -> Response:
    """Answer GET /v1/files/{id}/content; raises as get_file()."""
    store, key = context.store, key_of(request, file_id, "file")
    row = await find_file(store, key)
    headers = {"content-length": str(row.num_bytes)}
    return StreamingResponse(
        _pieces(store.files, key), media_type="application/octet-stream", headers=headers
    )


async def delete_file(context: BatchesContext, request: Request, file_id: str) -> Response:
    """Answer DELETE /v1/files/{id}; raises as get_file()."""
    if not await context.store.files.delete(key_of(request, file_id, "file")):
        raise not_found(file_id, "file")
    return json_response(DeletedFile(id=file_id))


async def find_file(store: FileStore, key: Key) -> FileRow:
    """Return a file; raises HttpError 404."""
    row = await store.files.get(key)
    if row is None:
        raise not_found(key.id, "file")
    return row


async def _pieces(files: StoredFiles, key: Key) -> AsyncGenerator[bytes, None]:
    number = 0
    while (piece := await files.piece(key, number)) is not None:
        yield piece
        number += 1


def _shown(row: FileRow) -> FileObject:
    return FileObject(
        id=row.id,
        bytes=row.num_bytes,
        created_at=int(row.created_s),
        expires_at=row.expires_s,
        filename=row.name,
        purpose="batch" if row.purpose == "batch" else "batch_output",
    )
