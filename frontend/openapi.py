"""The OpenAPI document: what operations declare, with the schemas of the structs that decode bodies."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from splitserve.frontend.anthropic.schema import rules as messages_rules
from splitserve.frontend.http.dialect import ErrorBody
from splitserve.frontend.openai.context import VERSION
from splitserve.frontend.openai.schema.rules import add_rules, add_tables
from splitserve.frontend.responses.schema import rules as responses_rules

# A JSON document of OpenAPI's own shape; the only place of this package where the type says no more.
Json = dict[str, Any]
REF = "#/components/schemas/{name}"
TITLE = "SplitServe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path: what answers it, and what the document says of it.

    Attributes:
        path: as Starlette's routes have it; parameters are text.
        name: with path and method the operation's id, by which generated clients name their functions.
        tag: the group it is listed in.
        query: name of each parameter in the query -> its schema.
        request: the struct that a body is decoded into, None for no body.
        form: name of each field of a form -> its schema, for a body that is none of JSON.
        example: a body that every server takes, but for the name of a model if one is needed.
        response: the struct of the response, None for plain text.
        events: the structs of its server-sent events.
        error: the struct of its errors.
        errors: statuses that come with an error object.
        is_probe: a failure has the same struct, with status 503.
        is_public: asks for no key even where there are keys.
        is_admin: asks for an admin key, whether there are others or not.
        is_socket: opens a WebSocket.
    """

    path: str
    method: str
    name: str
    tag: str
    summary: str
    endpoint: Callable[[Request], Awaitable[Response]]
    query: Json = field(default_factory=dict)
    request: type | None = None
    form: Json = field(default_factory=dict)
    example: Json | None = None
    response: type | None = None
    events: tuple[type, ...] = ()
    error: type = ErrorBody
    errors: tuple[int, ...] = (401,)
    is_probe: bool = False
    is_public: bool = False
    is_admin: bool = False
    is_socket: bool = False

    @property
    def document_path(self) -> str:
        """The path as the document has it, without the parameters' converters."""
        return re.sub(r"{(\w+):\w+}", r"{\1}", self.path)

    @property
    def structs(self) -> set[type]:
        """All that its bodies consist of."""
        kinds = (self.request, self.response, *self.events, self.error)
        return {kind for kind in kinds if kind is not None}


def build_openapi(operations: Iterable[Operation], *, with_keys: bool, max_logprobs: int) -> Json:
    """Return the document as a new dict.

    Args:
        operations: all that is served.
        with_keys: say that requests need a bearer key.
        max_logprobs: largest number of logprobs that requests may ask for.
    """
    operations = list(operations)
    structs = {ErrorBody}.union(*(operation.structs for operation in operations))
    _, components = msgspec.json.schema_components(
        sorted(structs, key=lambda kind: str(kind.__name__)), ref_template=REF
    )
    add_rules(components, max_logprobs)
    for each in (messages_rules, responses_rules):
        add_tables(components, each.RULES, each.FIELDS)
    document: Json = {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": VERSION},
        "paths": {},
        "components": {"schemas": components},
    }
    for operation in operations:
        entry = _describe(operation)
        if with_keys and operation.is_public:
            entry["security"] = []
        elif operation.is_admin and not with_keys:
            entry["security"] = [{"key": []}, {"header": []}]
        document["paths"].setdefault(operation.document_path, {})[operation.method.lower()] = entry
    if with_keys or any(operation.is_admin for operation in operations):
        document["components"]["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
    if with_keys:
        document["security"] = [{"key": []}, {"header": []}]
    return document


def _describe(operation: Operation) -> Json:
    path, method = operation.document_path, operation.method.lower()
    entry: Json = {
        "tags": [operation.tag],
        "summary": operation.summary,
        "operationId": re.sub(r"\W", "_", f"{operation.name}{path}") + f"_{method}",
    }
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
    ]
    parameters += [
        {"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()
    ]
    if parameters:
        entry["parameters"] = parameters
    if operation.request is not None:
        body: Json = {"schema": _ref(operation.request)}
        if operation.example is not None:
            body["example"] = operation.example
        entry["requestBody"] = {"required": True, "content": {"application/json": body}}
    if operation.form:
        form: Json = {"type": "object", "properties": operation.form, "required": list(operation.form)}
        entry["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": form}}}
    return entry | {"responses": _responses(operation)}


def _responses(operation: Operation) -> Json:
    contents: Json = {"text/plain": {"schema": {"type": "string"}}}
    if operation.response is not None:
        contents = {"application/json": {"schema": _ref(operation.response)}}
    if operation.events:
        schemas = [_ref(event) for event in operation.events]
        contents["text/event-stream"] = {"schema": schemas[0] if len(schemas) == 1 else {"oneOf": schemas}}
    responses: Json = {"200": {"description": "OK", "content": contents}}
    if operation.is_socket:
        responses = {"101": {"description": "The connection is a WebSocket now", "content": {}}}
    if operation.is_probe:
        responses["503"] = {"description": "No engine is ready, or none answered", "content": contents}
    for status in operation.errors:
        answer: Json = {
            "description": _ERROR_TEXTS[status],
            "content": {"application/json": {"schema": _ref(operation.error)}},
        }
        if status in _ERROR_HEADERS:
            name, schema = _ERROR_HEADERS[status]
            answer["headers"] = {name: {"required": True, "schema": schema}}
        responses[str(status)] = answer
    return responses


def _ref(kind: type) -> Json:
    return {"$ref": REF.format(name=kind.__name__)}


_ERROR_TEXTS = {
    400: "Malformed body, wrong type, value out of range, unsupported field, or context exceeded",
    401: "Missing or wrong API key",
    403: "A page of another origin, which --allowed-origin does not name",
    404: "No such model, no such response, file or batch that was kept, or no such request in flight",
    408: "The body did not arrive in time",
    409: "It has ended already",
    413: "The body is too large",
    415: "Content type is not what the route takes, or the body is compressed",
    426: "The request asks for no WebSocket",
    429: "Too many requests in flight, or the engine's queue is full; see Retry-After",
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
