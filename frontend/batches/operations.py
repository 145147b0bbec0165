"""The operations of files and batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from splitserve.frontend.batches.batches import cancel_batch, create_batch, get_batch, list_batches
from splitserve.frontend.batches.context import BatchesContext
from splitserve.frontend.batches.files import Uploads, delete_file, get_content, get_file, list_files
from splitserve.frontend.batches.schema import batches as batch_schema
from splitserve.frontend.batches.schema import files as file_schema
from splitserve.frontend.endpoints import Endpoint, with_parameter
from splitserve.frontend.openapi import Json, Operation

FILES_PATH = "/v1/files"
BATCHES_PATH = "/v1/batches"
_ERRORS = (400, 401, 404, 503)


def batch_operations(context: BatchesContext) -> list[Operation]:
    """Return what is served of files and batches; without a store it answers 404."""
    return [*_files(context), *_batches(context)]


def _files(context: BatchesContext) -> list[Operation]:
    files = partial(Operation, tag="files", errors=_ERRORS)
    one = FILES_PATH + "/{file_id}"

    def endpoint(answer: Callable[[BatchesContext, Request, str], Awaitable[Response]]) -> Endpoint:
        return with_parameter("file_id", partial(answer, context))

    return [
        files(
            path=FILES_PATH,
            method="POST",
            name="files",
            summary="Upload a file of requests",
            endpoint=Uploads(context).create_file,
            form={"file": {"type": "string", "format": "binary"}, "purpose": {"enum": ["batch"]}},
            response=file_schema.FileObject,
            errors=(400, 401, 404, 408, 413, 415, 429, 500, 503),
        ),
        files(
            path=FILES_PATH,
            method="GET",
            name="files",
            summary="List files",
            endpoint=partial(list_files, context),
            response=file_schema.FilePage,
            query=_page(file_schema.MAX_PAGE, file_schema.MAX_PAGE)
            | {"purpose": {"enum": list(file_schema.PURPOSES)}},
            errors=(400, 401, 404, 503),
        ),
        files(
            path=one,
            method="GET",
            name="file",
            summary="Show a file",
            endpoint=endpoint(get_file),
            response=file_schema.FileObject,
        ),
        files(
            path=f"{one}/content",
            method="GET",
            name="file",
            summary="Read a file",
            endpoint=endpoint(get_content),
        ),
        files(
            path=one,
            method="DELETE",
            name="file",
            summary="Delete a file",
            endpoint=endpoint(delete_file),
            response=file_schema.DeletedFile,
        ),
    ]


def _batches(context: BatchesContext) -> list[Operation]:
    batches = partial(Operation, tag="batches", errors=_ERRORS)
    one = BATCHES_PATH + "/{batch_id}"

    def endpoint(answer: Callable[[BatchesContext, Request, str], Awaitable[Response]]) -> Endpoint:
        return with_parameter("batch_id", partial(answer, context))

    return [
        batches(
            path=BATCHES_PATH,
            method="POST",
            name="batches",
            summary="Answer a file of requests without a client",
            endpoint=partial(create_batch, context),
            request=batch_schema.BatchRequest,
            example={
                "input_file_id": "file-1",
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
            },
            response=batch_schema.BatchObject,
            errors=(400, 401, 404, 408, 413, 415, 429, 500, 503),
        ),
        batches(
            path=BATCHES_PATH,
            method="GET",
            name="batches",
            summary="List batches",
            endpoint=partial(list_batches, context),
            response=batch_schema.BatchPage,
            query=_page(batch_schema.DEFAULT_PAGE, batch_schema.MAX_PAGE),
            errors=(400, 401, 404, 503),
        ),
        batches(
            path=one,
            method="GET",
            name="batch",
            summary="Show a batch",
            endpoint=endpoint(get_batch),
            response=batch_schema.BatchObject,
        ),
        batches(
            path=f"{one}/cancel",
            method="POST",
            name="batch",
            summary="End a batch early",
            endpoint=endpoint(cancel_batch),
            response=batch_schema.BatchObject,
            errors=(400, 401, 404, 409, 429, 503),
        ),
    ]


def _page(default: int, largest: int) -> Json:
    return {
        "limit": {"type": "integer", "minimum": 1, "maximum": largest, "default": default},
        "order": {"enum": ["asc", "desc"], "default": "desc"},
        "after": {"type": "string"},
    }
