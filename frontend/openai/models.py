"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
from starlette.responses import Response

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.ipc.wire import Task
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.engines.time_limits import check_time_left
from splitserve.frontend.openai.context import ApiContext, json_response
from splitserve.frontend.openai.schema.fields import GenerationFields
from splitserve.frontend.openai.timeouts import read_timeouts
from splitserve.frontend.text.pooling.vectors import check_generates


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One name a model is served under, or an adapter.

    `root` is the model's main name, `task` what it is for; `parent` is `root` for an adapter, otherwise null.
    """

    id: str
    created: int
    root: str
    max_model_len: int
    task: Task
    object: Literal["model"] = "model"
    owned_by: str = "splitserve"
    parent: str | None = None


class ModelList(msgspec.Struct, frozen=True):
    """All names served now; empty while no engine is ready."""

    data: list[ModelCard]
    object: Literal["list"] = "list"


async def list_models(context: ApiContext) -> Response:
    """Answer GET /v1/models."""
    await context.pool.settle()
    cards = []
    for model in context.pool.models():
        cards += [_card(found, name) for name in model.all_names if (found := model.named(name)) is not None]
    return json_response(ModelList(cards))


async def get_model(context: ApiContext, name: str) -> Response:
    """Answer GET /v1/models/{id}.

    Raises:
        InvalidRequestError: status 404, no engine serves the name.
        EngineUnavailableError: no engine is ready.
    """
    return json_response(_card(await find_model(context, name), name))


async def find_model(context: ApiContext, name: str | None) -> ServedModel:
    """Return the model a client named; None is the first one, an empty name is nobody's.

    Raises:
        InvalidRequestError: status 404, no engine serves the name.
        EngineUnavailableError: no engine is ready.
    """
    await context.pool.settle(name or "")
    return _look_up(context, name)


async def find_model_in_time(context: ApiContext, body: GenerationFields) -> tuple[ServedModel, float]:
    """Return the model of a request for text with its timeouts, and for how many seconds its engine was away.

    Raises:
        InvalidRequestError, EngineUnavailableError: as find_model(), or a timeout is out of range.
        InvalidRequestError: the model makes embeddings.
        EngineRequestError, QueueTimeoutError: a timeout passed meanwhile.
    """
    timeouts = read_timeouts(body)
    longest_s = min(filter(None, timeouts), default=math.inf)
    waited_s = await context.pool.settle(body.model or "", longest_s)
    check_time_left(waited_s, *timeouts)
    model = _look_up(context, body.model)
    check_generates(model.names[0], model.info)
    return model, waited_s


def _look_up(context: ApiContext, name: str | None) -> ServedModel:
    model = context.pool.find_model(name or "")
    if name == "":
        error = InvalidRequestError("the model '' does not exist", "model", "model_not_found")
        error.status = 404
        raise error
    return model


def _card(model: ServedModel, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=model.created,
        root=model.root,
        max_model_len=model.assets.max_model_len,
        task=model.info.task,
        parent=model.parent or None,
    )
