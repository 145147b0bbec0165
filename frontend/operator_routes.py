"""The operations of who runs the server and of their tools."""

from __future__ import annotations

from functools import partial
from typing import Literal

import msgspec

from splitserve.frontend.endpoints import constant, with_parameter, without_request
from splitserve.frontend.engines.questions import DEFAULT_SLEEP_LEVEL, SLEEP_LEVELS, WAKE_TAGS
from splitserve.frontend.http.limits import InFlightRequests
from splitserve.frontend.metrics.scrape import Scrape
from splitserve.frontend.openai.context import VERSION, ApiContext
from splitserve.frontend.openapi import Operation
from splitserve.frontend.operator.adapters import (
    AdapterAnswer,
    LoadAdapterRequest,
    UnloadAdapterRequest,
    load_adapter,
    unload_adapter,
)
from splitserve.frontend.operator.debug_engines import EngineViewList, view_engines
from splitserve.frontend.operator.debug_requests import OpenRequestList, list_requests, show_request
from splitserve.frontend.operator.engine_sleep import (
    CacheReset,
    SleepAnswer,
    reset_prefix_cache,
    show_sleep,
    sleep,
    wake_up,
)
from splitserve.frontend.operator.health import Health, HealthProbe
from splitserve.frontend.operator.load import ServerLoad, server_load
from splitserve.frontend.operator.log_level import (
    LogLevelRequest,
    LogLevels,
    change_log_level,
    show_log_level,
)

_operator = partial(Operation, tag="operation", method="GET")


class LiveAnswer(msgspec.Struct, frozen=True):
    """The answer of /live."""

    status: Literal["ok"]


class VersionAnswer(msgspec.Struct, frozen=True):
    """The answer of /version."""

    version: str


def operator_operations(
    context: ApiContext, requests: InFlightRequests, health: HealthProbe, scrape: Scrape
) -> list[Operation]:
    """Return what operators and their tools call."""
    probe = partial(_operator, endpoint=without_request(health.check), response=Health, is_probe=True)
    return [
        _operator(
            path="/live",
            name="live",
            summary="The process runs; needs no key",
            endpoint=constant(LiveAnswer("ok")),
            response=LiveAnswer,
            errors=(),
            is_public=True,
        ),
        probe(path="/health", name="health", summary="An engine answered through its busy loop"),
        probe(path="/ready", name="ready", summary="As /health"),
        probe(path="/ping", name="ping", summary="As /health"),
        probe(path="/ping", method="POST", name="ping", summary="As /health", errors=(401, 429)),
        _operator(
            path="/load",
            name="load",
            summary="Requests in progress in this process",
            endpoint=without_request(lambda: server_load(requests)),
            response=ServerLoad,
        ),
        *_adapters(context),
        _operator(
            path="/version",
            name="version",
            summary="The version of this software",
            endpoint=constant(VersionAnswer(VERSION)),
            response=VersionAnswer,
        ),
        *_debugging(context),
        *((*_admin(context), *_sleeping(context)) if context.config.admin_key_hashes else ()),
        _operator(
            path="/metrics",
            name="metrics",
            summary="Prometheus metrics",
            endpoint=without_request(scrape.answer),
        ),
    ]


def _adapters(context: ApiContext) -> list[Operation]:
    errors = (400, 401, 403, 404, 408, 413, 415, 429, 500, 503)
    adapters = partial(Operation, tag="operation", method="POST", errors=errors)
    return [
        adapters(
            path="/v1/load_lora_adapter",
            name="load_lora_adapter",
            summary="Load an adapter",
            endpoint=partial(load_adapter, context),
            request=LoadAdapterRequest,
            example={"lora_name": "sql", "lora_path": "sql"},
            response=AdapterAnswer,
        ),
        adapters(
            path="/v1/unload_lora_adapter",
            name="unload_lora_adapter",
            summary="Unload an adapter",
            endpoint=partial(unload_adapter, context),
            request=UnloadAdapterRequest,
            example={"lora_name": "sql"},
            response=AdapterAnswer,
        ),
    ]


def _admin(context: ApiContext) -> list[Operation]:
    admin = partial(
        Operation,
        path="/debug/log_level",
        tag="operation",
        name="log_level",
        response=LogLevels,
        is_admin=True,
    )
    return [
        admin(
            method="GET",
            summary="The least severe level that this frontend logs",
            endpoint=show_log_level,
        ),
        admin(
            method="POST",
            summary="Change the log level of frontends, engines and workers",
            endpoint=partial(change_log_level, context),
            request=LogLevelRequest,
            example={"level": "debug"},
            errors=(400, 401, 408, 413, 415, 429, 500),
        ),
    ]


def _sleeping(context: ApiContext) -> list[Operation]:
    admin = partial(Operation, tag="operation", method="POST", response=SleepAnswer, is_admin=True)
    return [
        admin(
            path="/sleep",
            name="sleep",
            summary="Have all engines give up memory, until they are woken up",
            endpoint=partial(sleep, context),
            query={"level": {"enum": list(SLEEP_LEVELS), "default": DEFAULT_SLEEP_LEVEL}},
            errors=(400, 401, 503),
        ),
        admin(
            path="/wake_up",
            name="wake_up",
            summary="Have them take it again",
            endpoint=partial(wake_up, context),
            query={"tags": {"type": "array", "items": {"enum": list(WAKE_TAGS)}}},
            errors=(400, 401, 503),
        ),
        admin(
            path="/is_sleeping",
            method="GET",
            name="is_sleeping",
            summary="Whether the engines sleep",
            endpoint=without_request(partial(show_sleep, context)),
        ),
        admin(
            path="/reset_prefix_cache",
            name="reset_prefix_cache",
            summary="Let nobody find the prefixes that are cached now",
            endpoint=without_request(partial(reset_prefix_cache, context)),
            response=CacheReset,
            errors=(401, 503),
        ),
    ]


def _debugging(context: ApiContext) -> list[Operation]:
    return [
        _operator(
            path="/debug/engines",
            name="debug_engines",
            summary="The engines' blocks, last steps and tenants, for who watches them",
            endpoint=partial(view_engines, context),
            response=EngineViewList,
        ),
        _operator(
            path="/debug/requests",
            name="debug_requests",
            summary="Your open requests, and what they wait for",
            endpoint=partial(list_requests, context),
            response=OpenRequestList,
            errors=(401, 503),
        ),
        _operator(
            path="/debug/requests/{request_id}",
            name="debug_request",
            summary="Why does this request wait",
            endpoint=with_parameter("request_id", partial(show_request, context)),
            response=OpenRequestList,
            errors=(401, 404, 503),
        ),
    ]
