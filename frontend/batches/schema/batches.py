"""A batch as its routes take it and show it, and as it is kept."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

MAX_PAGE: Final = 100
DEFAULT_PAGE: Final = 20
MAX_EXPIRY_S: Final = 30 * 86400
MIN_EXPIRY_S: Final = 3600

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
Status = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


class OutputExpiry(msgspec.Struct, frozen=True, kw_only=True):
    """When the files of answers are deleted."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=MIN_EXPIRY_S, le=MAX_EXPIRY_S)]


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of POST /v1/batches."""

    input_file_id: str
    endpoint: Endpoint
    completion_window: Annotated[
        str,
        Meta(
            description="Minutes, hours or days (24h), up to 14 days, after which what has no answer expires."
        ),
    ]
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None


class BatchFault(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with the input file."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchFaults(msgspec.Struct, frozen=True, kw_only=True):
    """All that is wrong with it, or the first of that."""

    data: list[BatchFault]
    object: Literal["list"] = "list"


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many of the requests there are, and have an answer or an error."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    """A batch; times are seconds since 1970."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: Status
    created_at: int
    expires_at: int
    object: Literal["batch"] = "batch"
    errors: BatchFaults | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    metadata: dict[str, str] | None = None


class KeptBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a batch beside its counts.

    Attributes:
        batch: as it is shown.
        end: what its status becomes once it is finalized.
        output_ttl_s: how long its files of answers live; 0 for what the server keeps files for.
    """

    batch: BatchObject
    end: Status = "completed"
    output_ttl_s: int = 0


class BatchPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some batches; after the last one there are more if has_more says so."""

    data: list[BatchObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"
