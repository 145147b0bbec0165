"""What every handler needs from its process, and the steps that all handlers share."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from splitserve.engine_core.checkpoint.config.sampling_defaults import SamplingDefaults
from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.process.version import software_version
from splitserve.frontend.config import FrontendConfig
from splitserve.frontend.engines.pool import EnginePool
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.http.body_receiver import read_body, release_body
from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.http.request_log import is_request_id
from splitserve.frontend.http.response.json_pieces import JsonPieces
from splitserve.frontend.http.response.keep_alive import KeepAlive
from splitserve.frontend.http.response.long_answer import LongAnswer
from splitserve.frontend.http.slices import SliceQueue
from splitserve.frontend.metrics.process import FrontendMetrics
from splitserve.frontend.observability.logged_text import log_body
from splitserve.frontend.openai.schema.sampling import NO_DEFAULTS, ServedLimits
from splitserve.frontend.openai.schema.unsupported import Accepted, refuse_unsupported
from splitserve.frontend.text.answers.detection import with_overrides
from splitserve.frontend.text.answers.formats import AnswerFormats
from splitserve.frontend.unknown_fields import UnknownFields

T = TypeVar("T", bound=msgspec.Struct)
VERSION = software_version()


@dataclass(slots=True, frozen=True)
class ApiContext:
    """Owners a handler works with; one per process."""

    config: FrontendConfig
    pool: EnginePool
    metrics: FrontendMetrics
    unknown_fields: UnknownFields
    keep_alive: KeepAlive
    slices: SliceQueue

    def sampling_defaults(self, model: ServedModel) -> SamplingDefaults:
        """Return the checkpoint's defaults, or none if the operator switched them off."""
        return model.assets.sampling_defaults if self.config.generation_config == "auto" else NO_DEFAULTS

    def answer_formats(self, model: ServedModel) -> AnswerFormats:
        """Return how a model writes reasoning and tool calls, unless the operator knows better."""
        found, config = model.assets.answer_formats, self.config
        return with_overrides(found, config.reasoning_parser, config.tool_call_parser)

    def limits(self, model: ServedModel) -> ServedLimits:
        """Return what requests for a model are held to: by it, its engines and the operator."""
        return ServedLimits(model.assets.vocab_size, min(self.config.max_logprobs, model.max_logprobs))


class ResponseHead(msgspec.Struct, frozen=True):
    """The fields every answer and chunk of one request repeat."""

    id: str
    created: int
    model: str
    system_fingerprint: str


async def read_struct(
    context: ApiContext, request: Request, decoder: BodyDecoder[T], refused: dict[str, Accepted]
) -> T:
    """Read, decode and check one request body.

    Raises:
        HttpError: 408, 413 or 415.
        InvalidRequestError: malformed, wrong types, unsupported or (strict) unknown fields.
    """
    raw = await read_body(request)
    try:
        decoded = await decoder.decode(raw)
    finally:
        release_body(request)
    log_body(context.config.log_requests, request.state.request_id, request.url.path, decoded.fields)
    if decoded.unknown:
        context.unknown_fields.check(decoded.unknown)
    refuse_unsupported(decoded.fields, refused)
    return decoded.value


def make_head(
    request: Request, prefix: str, body_id: str | None, asked: str | None, model: ServedModel
) -> ResponseHead:
    """Make the head of a response; a valid X-Request-Id takes precedence over the body's request_id.

    Raises:
        InvalidRequestError: the body's request_id has other characters or is too long.
    """
    if body_id is not None and not is_request_id(body_id):
        raise InvalidRequestError("request_id must be 1 to 100 letters, digits and . _ : -", "request_id")
    given = is_request_id(request.headers.get("x-request-id", ""))
    unique: str = body_id if body_id is not None and not given else request.state.request_id
    return ResponseHead(f"{prefix}{unique}", int(time.time()), asked or model.names[0], fingerprint(model))


def fingerprint(model: ServedModel) -> str:
    """Name what the tokens depend on beside the request: software and model, not the paths they lie at."""
    info = model.info
    parts = (
        f"{VERSION}|{info.architecture}|{info.dtype}|{info.num_params}|{info.vocab_size}|{info.max_model_len}"
    )
    if model.adapter is not None:
        parts += f"|{model.adapter.name}|{model.adapter.digest}"
    return "fp_" + hashlib.sha256(parts.encode()).hexdigest()[:12]


def json_response(value: msgspec.Struct, status: int = 200) -> Response:
    """Encode a struct as the response."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def json_answer(context: ApiContext, pieces: JsonPieces, value: msgspec.Struct) -> Response:
    """Encode a struct as the response: at once, or while it is sent if it has parts for that."""
    if not pieces.has_parts:
        return json_response(value)
    return LongAnswer(pieces.fill(msgspec.json.encode(value)), context.slices)
