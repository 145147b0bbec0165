"""The OpenAPI document: FastAPI's routes with the schemas of the structs that bodies are decoded into."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from splitserve.engine_core.sampling_params import MAX_LOGPROBS
from splitserve.frontend.http.errors import ErrorBody
from splitserve.frontend.openai.context import VERSION
from splitserve.frontend.openai.models import ModelCard, ModelList
from splitserve.frontend.openai.schema.chat import ChatChunk, ChatRequest, ChatResponse
from splitserve.frontend.openai.schema.completions import (
    CompletionChunk,
    CompletionRequest,
    CompletionResponse,
)
from splitserve.frontend.openai.schema.rules import add_rules
from splitserve.frontend.openai.schema.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from splitserve.frontend.openai.tokenizer_info import TokenizerInfo
from splitserve.frontend.operator.debug_requests import OpenRequestList
from splitserve.frontend.operator.health import Health
from splitserve.frontend.operator.load import ServerLoad

# A JSON document of OpenAPI's own shape; the only place of this package where the type says no more.
Json = dict[str, Any]
REF = "#/components/schemas/{name}"


class Operation(NamedTuple):
    """What one route takes and gives.

    Attributes:
        event: the struct of its server-sent events.
        errors: statuses that come with an error object.
        probe: a failure has the same struct, with status 503.
    """

    request: type | None
    response: type | None
    event: type | None = None
    errors: tuple[int, ...] = (401,)
    probe: bool = False


class LiveAnswer(msgspec.Struct, frozen=True):
    """The answer of /live."""

    status: Literal["ok"]


class VersionAnswer(msgspec.Struct, frozen=True):
    """The answer of /version."""

    version: str


_BODY_ERRORS = (400, 401, 404, 408, 413, 415, 429, 500, 503, 504)
OPERATIONS: dict[tuple[str, str], Operation] = {
    ("/v1/completions", "post"): Operation(
        CompletionRequest, CompletionResponse, CompletionChunk, _BODY_ERRORS
    ),
    ("/v1/chat/completions", "post"): Operation(ChatRequest, ChatResponse, ChatChunk, _BODY_ERRORS),
    ("/v1/models", "get"): Operation(None, ModelList),
    ("/v1/models/{model_id}", "get"): Operation(None, ModelCard, None, (401, 404, 503)),
    ("/tokenize", "post"): Operation(TokenizeRequest, TokenizeResponse, None, _BODY_ERRORS),
    ("/detokenize", "post"): Operation(DetokenizeRequest, DetokenizeResponse, None, _BODY_ERRORS),
    ("/debug/requests", "get"): Operation(None, OpenRequestList, None, (401, 503)),
    ("/debug/requests/{request_id}", "get"): Operation(None, OpenRequestList, None, (401, 404, 503)),
    ("/health", "get"): Operation(None, Health, probe=True),
    ("/ready", "get"): Operation(None, Health, probe=True),
    ("/ping", "get"): Operation(None, Health, probe=True),
    ("/ping", "post"): Operation(None, Health, None, (401, 429), probe=True),
    ("/load", "get"): Operation(None, ServerLoad),
    ("/tokenizer_info", "get"): Operation(None, TokenizerInfo, None, (401, 404, 503)),
    ("/live", "get"): Operation(None, LiveAnswer, errors=()),
    ("/version", "get"): Operation(None, VersionAnswer),
}


def install_openapi(app: FastAPI, *, with_keys: bool, max_logprobs: int = MAX_LOGPROBS) -> None:
    """Make app.openapi() give the document, built at its first use.

    Args:
        app: with all its routes.
        with_keys: say that requests need a bearer key.
        max_logprobs: largest number of logprobs that requests may ask for.
    """

    def openapi() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = build_openapi(app, with_keys=with_keys, max_logprobs=max_logprobs)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def build_openapi(app: FastAPI, *, with_keys: bool, max_logprobs: int = MAX_LOGPROBS) -> Json:
    """Return the document as a new dict."""
    document: Json = get_openapi(title="SplitServe", version=VERSION, routes=app.routes)
    operations = {key: each for key, each in OPERATIONS.items() if key[0] in document["paths"]}
    structs = {kind for operation in operations.values() for kind in operation[:3] if kind is not None}
    _, components = msgspec.json.schema_components(
        [ErrorBody, *sorted(structs, key=lambda kind: str(kind.__name__))], ref_template=REF
    )
    add_rules(components, max_logprobs)
    document["components"] = {"schemas": components}
    for (path, method), operation in operations.items():
        _describe(document["paths"][path][method], operation)
    document["paths"]["/metrics"]["get"]["responses"]["200"]["content"] = {
        "text/plain": {"schema": {"type": "string"}}
    }
    if with_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
        document["paths"]["/live"]["get"]["security"] = []
    return document


def _describe(entry: Json, operation: Operation) -> None:
    if operation.request is not None:
        content = {"application/json": {"schema": _ref(operation.request)}}
        entry["requestBody"] = {"required": True, "content": content}
    answers: Json = {"application/json": {"schema": _ref(operation.response)}}
    if operation.event is not None:
        answers["text/event-stream"] = {"schema": _ref(operation.event)}
    entry["responses"] = {"200": {"description": "OK", "content": answers}}
    if operation.probe:
        entry["responses"]["503"] = {
            "description": "No engine is ready, or none answered",
            "content": answers,
        }
    for status in operation.errors:
        answer: Json = {
            "description": _ERROR_TEXTS[status],
            "content": {"application/json": {"schema": _ref(ErrorBody)}},
        }
        if status in _ERROR_HEADERS:
            name, schema = _ERROR_HEADERS[status]
            answer["headers"] = {name: {"required": True, "schema": schema}}
        entry["responses"][str(status)] = answer


def _ref(kind: type | None) -> Json:
    assert kind is not None, "every described route answers with a struct"
    return {"$ref": REF.format(name=kind.__name__)}


_ERROR_TEXTS = {
    400: "Malformed body, wrong type, value out of range, unsupported field, or context exceeded",
    401: "Missing or wrong API key",
    404: "No such model, or no such open request",
    408: "The body did not arrive in time",
    413: "The body is too large",
    415: "Content type is not application/json, or the body is compressed",
    429: "Too many open requests, or the engine's queue is full; see Retry-After",
    500: "A fault of the server, or the model's output is not a number",
    503: "No engine is ready, the device ran out of memory, or the queue timeout has passed; see Retry-After",
    504: "The request's timeout has passed",
}
_SECONDS: Json = {"type": "integer", "minimum": 1, "description": "Seconds after which to try again."}
# Status -> the header that comes with it.
_ERROR_HEADERS: dict[int, tuple[str, Json]] = {
    401: ("WWW-Authenticate", {"type": "string", "const": "Bearer"}),
    429: ("Retry-After", _SECONDS),
    503: ("Retry-After", _SECONDS),
}
