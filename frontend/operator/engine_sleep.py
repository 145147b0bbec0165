"""/sleep, /wake_up, /is_sleeping and /reset_prefix_cache: what operators do to all engines at once."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from splitserve.frontend.engines.questions import (
    AWAKE,
    DEFAULT_SLEEP_LEVEL,
    check_sleep_level,
    check_wake_tags,
)
from splitserve.frontend.openai.context import ApiContext, json_response

# Answered between two steps, which may be long ones, and when ended workers have freed their memory.
TIMEOUT_S = 60.0


class SleepAnswer(msgspec.Struct, frozen=True):
    """Whether all engines that are connected sleep."""

    is_sleeping: bool


class CacheReset(msgspec.Struct, frozen=True):
    """How many blocks held a prefix that nobody finds any more."""

    num_blocks: int


async def sleep(context: ApiContext, request: Request) -> Response:
    """Answer POST /sleep.

    Raises:
        InvalidRequestError: the level is neither 1 nor 2.
        EngineUnavailableError: no engine is ready, or one does not answer.
    """
    text = request.query_params.get("level", str(DEFAULT_SLEEP_LEVEL))
    level = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    check_sleep_level(level or text)
    await context.pool.rest(level, TIMEOUT_S)
    return json_response(SleepAnswer(True))


async def wake_up(context: ApiContext, request: Request) -> Response:
    """Answer POST /wake_up.

    Raises:
        InvalidRequestError: the tags name a part.
        EngineUnavailableError: no engine is ready, or one does not answer.
    """
    check_wake_tags(request.query_params.getlist("tags") or None)
    await context.pool.rest(AWAKE, TIMEOUT_S)
    return json_response(SleepAnswer(False))


async def show_sleep(context: ApiContext) -> Response:
    """Answer GET /is_sleeping."""
    found = [status.is_asleep for status in context.pool.status() if status.model is not None]
    return json_response(SleepAnswer(bool(found) and all(found)))


async def reset_prefix_cache(context: ApiContext) -> Response:
    """Answer POST /reset_prefix_cache; raises EngineUnavailableError."""
    return json_response(CacheReset(await context.pool.reset_prefix_cache(TIMEOUT_S)))
