"""How does the API of a request word errors, and what stands between the events of its streams?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from starlette.types import Scope


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong: words for people, `type` of error, `param` the dotted field, `code` for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error response, and of the error event of a stream that has started."""

    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class Dialect:
    """What is an API's own about errors and streams.

    Attributes:
        error: makes the body of an error of its status, its detail and the request's id.
        error_prefix: what stands before the data of a stream's error event.
        keep_alive: breaks the silence of a stream.
        end: ends a stream, after an error too.
        id_header: names the request's id beside x-request-id; b"" for none.
    """

    error: Callable[[int, ErrorDetail, str], msgspec.Struct]
    error_prefix: bytes
    keep_alive: bytes
    end: bytes
    id_header: bytes = b""


OPENAI = Dialect(
    error=lambda _status, detail, _request_id: ErrorBody(detail),
    error_prefix=b"",
    keep_alive=b": keep-alive\n\n",
    end=b"data: [DONE]\n\n",
)
_STATE = "dialect"


def note_dialect(scope: Scope, dialects: Mapping[str, Dialect]) -> None:
    """Keep in the request's state which of the dialects, by path, is its own."""
    # Behind a proxy's prefix or not, as the router sees it (frontend.http.root_path).
    path: str = scope["path"]
    dialect = dialects.get(path) or dialects.get(path.removeprefix(scope.get("root_path", "")))
    if dialect is not None:
        scope["state"][_STATE] = dialect


def dialect_of(scope: Scope) -> Dialect:
    """Return the dialect of a request."""
    dialect: Dialect = scope.get("state", {}).get(_STATE, OPENAI)
    return dialect


def error_struct(scope: Scope, status: int, detail: ErrorDetail) -> msgspec.Struct:
    """Return the body of an error of a request."""
    return dialect_of(scope).error(status, detail, scope.get("state", {}).get("request_id", ""))
