"""GET /debug/requests: the state of open requests on the engines, and what the waiting ones wait for."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from splitserve.engine_core.ipc.messages import RequestInfo, RequestStage, WaitReason
from splitserve.frontend.http.errors import HttpError
from splitserve.frontend.metrics.engines import engine_names
from splitserve.frontend.openai.context import ApiContext, json_response

TIMEOUT_S = 5.0
# Prefixes of response ids; a client may know only its X-Request-Id.
_PREFIXES = ("", "cmpl-", "chatcmpl-", "msg_", "resp_")
MAX_ID_CHARS = 128


class OpenRequestState(msgspec.Struct, frozen=True):
    """One sequence that is open on an engine; counts are tokens.

    Attributes:
        state: "waiting", "running" or "preempted".
        waits_for: "rows", "blocks", "tokens", "fair_share", "prefix" or "grammar"; null if it is running.
        position: how many are ahead of it in its queue; null if it is running.
        queue_time_s: how long it waited, or has waited so far, before it first ran.
        draft_tokens, accepted_draft_tokens: tokens drafted for it on this engine, and those of them that
            counted.
    """

    engine: str
    request_id: str
    state: str
    waits_for: str | None
    position: int | None
    priority: int
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int
    preemptions: int
    age_s: float
    queue_time_s: float
    draft_tokens: int
    accepted_draft_tokens: int


class OpenRequestList(msgspec.Struct, frozen=True):
    """The caller's oldest open requests, at most 100 per engine, and the engines that did not reply."""

    requests: list[OpenRequestState]
    unanswered: list[str]


async def list_requests(context: ApiContext, request: Request) -> Response:
    """List all open requests of the caller's tenant, or of everybody if no API keys are set.

    Raises:
        EngineUnavailableError: no engine is ready.
    """
    return json_response(await _ask(context, request, []))


async def show_request(context: ApiContext, request: Request, request_id: str) -> Response:
    """Show one request, and its parts if it has several.

    Args:
        context: this process's context.
        request: the caller's HTTP request.
        request_id: the response's id, or the X-Request-Id that was sent with it.

    Raises:
        HttpError: 404 "unknown_request": it is not open, or belongs to another tenant.
        EngineUnavailableError: no engine is ready.
    """
    found = OpenRequestList([], [])
    if len(request_id) <= MAX_ID_CHARS:
        found = await _ask(context, request, [prefix + request_id for prefix in _PREFIXES])
    if not found.requests:
        raise HttpError(404, "unknown_request", "No request in flight has this id.")
    return json_response(found)


async def _ask(context: ApiContext, request: Request, request_ids: list[str]) -> OpenRequestList:
    tenant: str = getattr(request.state, "tenant", "")
    statuses = context.pool.status()
    names = dict(zip((status.address for status in statuses), engine_names(statuses), strict=True))
    outcomes = await context.pool.explain(request_ids, tenant, TIMEOUT_S)
    return OpenRequestList(
        [_state(names.get(o.address, ""), info) for o in outcomes for info in o.requests],
        [names.get(o.address, "") for o in outcomes if not o.ok],
    )


def _state(engine: str, info: RequestInfo) -> OpenRequestState:
    waits = info.stage is not RequestStage.RUNNING
    return OpenRequestState(
        engine=engine,
        request_id=info.request_id,
        state=info.stage.name.lower(),
        waits_for=info.waits_for.name.lower() if info.waits_for is not WaitReason.NONE else None,
        position=info.position if waits else None,
        priority=info.priority,
        prompt_tokens=info.num_prompt_tokens,
        output_tokens=info.num_output_tokens,
        computed_tokens=info.num_computed_tokens,
        preemptions=info.num_preemptions,
        age_s=info.age_s,
        queue_time_s=info.queue_time_s,
        draft_tokens=info.num_draft_tokens,
        accepted_draft_tokens=info.num_accepted_draft_tokens,
    )
