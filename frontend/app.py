"""The HTTP application: routes, layers and life cycle around one engine pool."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from functools import partial
from typing import TYPE_CHECKING

from fastapi import FastAPI
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Lifespan

from splitserve.engine_core.errors import SplitServeError
from splitserve.frontend.batches.context import BatchesContext
from splitserve.frontend.batches.files import UPLOAD_TIMEOUT_S
from splitserve.frontend.batches.operations import FILES_PATH, batch_operations
from splitserve.frontend.batches.start import make_batches
from splitserve.frontend.batches.upload import FORM_BYTES
from splitserve.frontend.config import FrontendConfig
from splitserve.frontend.database.place import is_named
from splitserve.frontend.docs_page import DocsPage
from splitserve.frontend.engines.pool import EnginePool
from splitserve.frontend.http.auth import AuthMiddleware, KeyPaths
from splitserve.frontend.http.body_receiver import BodyRules
from splitserve.frontend.http.connection.connection_limits import ConnectionLimits
from splitserve.frontend.http.connection.disconnect import ClientGoneError
from splitserve.frontend.http.error_handler import ErrorHandler
from splitserve.frontend.http.limits import InFlightRequests, LimitsMiddleware
from splitserve.frontend.http.request_log import RequestLogMiddleware
from splitserve.frontend.http.response.keep_alive import KeepAlive
from splitserve.frontend.http.root_path import RootPathMiddleware
from splitserve.frontend.http.slices import SliceQueue
from splitserve.frontend.launch import Launch
from splitserve.frontend.metrics.figures import Counts, EngineFigures, FrontendFigures
from splitserve.frontend.metrics.process import FrontendMetrics
from splitserve.frontend.metrics.scrape import Scrape
from splitserve.frontend.metrics.vllm_names import VllmEngineFigures, VllmNames
from splitserve.frontend.observability.trace_layer import TraceMiddleware
from splitserve.frontend.openai.context import VERSION, ApiContext
from splitserve.frontend.openapi import TITLE, Json, Operation, build_openapi
from splitserve.frontend.operator.health import HealthProbe
from splitserve.frontend.operator_routes import operator_operations
from splitserve.frontend.page.routes import Page
from splitserve.frontend.response_store.place import open_database
from splitserve.frontend.response_store.store import ResponseStore, StoreLimits
from splitserve.frontend.responses.compaction.summary_seal import read_seal
from splitserve.frontend.responses.context import ResponsesContext
from splitserve.frontend.responses.kept.background import BackgroundRuns
from splitserve.frontend.routes import (
    ApiRoute,
    api_dialects,
    api_operations,
    make_routes,
)
from splitserve.frontend.unknown_fields import UnknownFields

if TYPE_CHECKING:
    from splitserve.frontend.observability.spans import OtelTracer


class AppOwners:
    """What the server around the app needs of it, kept in app.state.owners.

    Attributes:
        requests: the requests in progress, for shutdown.
        health: the probe, told of a shutdown first.
        connections: the open connections.
    """

    def __init__(self, config: FrontendConfig, pool: EnginePool) -> None:
        self.connections = ConnectionLimits(config)
        self.requests = InFlightRequests(config.max_open_requests, config.write_stall_s)
        self.health = HealthProbe(pool, config.health_timeout_s)


def create_app(config: FrontendConfig, pool: EnginePool, launch: Launch | None = None) -> FastAPI:
    """Compose the application; starting and closing the pool is the caller's.

    Args:
        config: validated.
        pool: the engines, connected or about to be.
        launch: that this frontend belongs to, None for one that was started by itself.
    """
    owners = AppOwners(config, pool)
    metrics = FrontendMetrics(str(launch.number) if launch is not None else config.frontend_id)
    keep_alive = KeepAlive(config.sse_keep_alive_s)
    context = ApiContext(config, pool, metrics, UnknownFields(config.strict), keep_alive, SliceQueue())

    responses = _responses(context, owners.requests)
    batches = make_batches(context, responses, owners.requests, lambda: owners.health.shutting_down)
    count = partial(_count, owners, responses, batches)
    scrape = _scrape(context, FrontendFigures(pool, metrics, count), launch)
    tracer = _tracer(config)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        async with contextlib.AsyncExitStack() as stack:
            if tracer is not None:
                await stack.enter_async_context(tracer.running())
            for each in (owners.requests.watching, scrape.answering, responses.running, batches.running):
                await stack.enter_async_context(each())
            yield

    operations = api_operations(context, responses) + batch_operations(batches)
    operations += operator_operations(context, owners.requests, owners.health, scrape)
    app = DocumentedApp(operations, config, lifespan)
    app.state.owners = owners
    page = None if config.disable_page else Page(config.root_path)
    if page is not None:
        app.router.routes += [ApiRoute(path, each, methods=["GET"]) for path, each in page.routes.items()]
    for route in app.routes:
        if isinstance(route, Route):
            for method in (route.methods or set()) - {"HEAD"}:
                metrics.http.expect(route.path, method)
    admin = frozenset(each.path for each in operations if each.is_admin)
    paths = KeyPaths(page.paths if page is not None else frozenset(), admin)
    _add_layers(app, context, owners, paths, tracer)
    return app


def _tracer(config: FrontendConfig) -> OtelTracer | None:
    if not config.otlp_traces_endpoint:
        return None
    # OpenTelemetry is an extra.
    from splitserve.frontend.observability.spans import OtelTracer

    return OtelTracer(config.otlp_traces_endpoint, config.trace_sample_ratio, config.frontend_id)


def _scrape(context: ApiContext, own: Collector, launch: Launch | None) -> Scrape:
    """Return what answers GET /metrics, under vLLM's names, too, if the configuration says so."""
    engines: Collector = EngineFigures(context.pool)
    if context.config.metrics_compat == "vllm":
        engines, own = VllmEngineFigures(VllmNames(engines), context.pool.status), VllmNames(own)
    return Scrape(context.pool, engines, own, launch)


def _count(owners: AppOwners, responses: ResponsesContext, batches: BatchesContext) -> Counts:
    background, store = responses.background, responses.store
    runner, files = batches.runner, batches.kept
    return Counts(
        requests=len(owners.requests),
        connections=owners.connections.num_open,
        background=len(background) if background is not None else 0,
        response_store_errors=store.num_errors if store is not None else 0,
        batches=len(runner) if runner is not None else 0,
        batch_lines=runner.num_lines if runner is not None else 0,
        file_store_errors=files.num_errors if files is not None else 0,
    )


def _responses(context: ApiContext, requests: InFlightRequests) -> ResponsesContext:
    """Return what the Responses API needs, with a store if the configuration names one."""
    config = context.config
    seal = read_seal(config.compaction_key_file)
    if not is_named(config.response_store):
        return ResponsesContext(context, seal=seal)
    limits = StoreLimits(config.response_ttl_s, config.response_store_bytes)
    store = ResponseStore(open_database(config.response_store), limits)
    background = BackgroundRuns(store, requests, config.max_background_responses)
    return ResponsesContext(context, store, background, seal)


class DocumentedApp(FastAPI):
    """FastAPI with one table for its routes and its document.

    Bodies are decoded into structs by msgspec, and nothing is injected into endpoints. So the routes are
    Starlette's, and the document, which FastAPI would make of signatures, is made of the same table.
    """

    def __init__(
        self, operations: list[Operation], config: FrontendConfig, lifespan: Lifespan[FastAPI]
    ) -> None:
        """Args: lifespan is what runs while the server does."""
        self._operations = operations
        self._with_keys = bool(config.api_key_hashes)
        self._max_logprobs = config.max_logprobs
        has_docs = not config.disable_docs
        super().__init__(
            title=TITLE,
            version=VERSION,
            docs_url=None,
            redoc_url=None,
            openapi_url="/openapi.json" if has_docs else None,
            lifespan=lifespan,
            redirect_slashes=False,
        )
        self.router.routes += make_routes(operations)
        if has_docs:
            self.add_route("/docs", DocsPage(self.openapi).show, include_in_schema=False)

    def openapi(self) -> Json:
        """Return the document, built at its first use."""
        if self.openapi_schema is None:
            self.openapi_schema = build_openapi(
                self._operations, with_keys=self._with_keys, max_logprobs=self._max_logprobs
            )
        return self.openapi_schema


def _add_layers(
    app: FastAPI, context: ApiContext, owners: AppOwners, paths: KeyPaths, tracer: OtelTracer | None
) -> None:
    """Stack the layers, innermost first: limits, keys, CORS (whose preflights have none), log, prefix."""
    config = context.config
    errors = ErrorHandler(has_docs=not config.disable_docs)
    app.add_exception_handler(SplitServeError, errors.handle)
    app.add_exception_handler(HTTPException, errors.handle)
    app.add_exception_handler(ClientGoneError, _client_gone)
    app.add_exception_handler(ClientDisconnect, _client_gone)
    uploads = {
        FILES_PATH: BodyRules(
            config.max_file_bytes + FORM_BYTES, UPLOAD_TIMEOUT_S, b"multipart/form-data", is_passed_on=True
        )
    }
    app.add_middleware(LimitsMiddleware, config=config, requests=owners.requests, uploads=uploads)
    app.add_middleware(AuthMiddleware, config=config, paths=paths)
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=config.allowed_methods,
            allow_headers=config.allowed_headers,
            allow_credentials=config.allow_credentials,
            expose_headers=("x-request-id", "request-id", "retry-after"),
        )
    if tracer is not None:
        app.add_middleware(TraceMiddleware, tracer=tracer)
    app.add_middleware(RequestLogMiddleware, metrics=context.metrics, dialects=api_dialects())
    if config.root_path:
        app.add_middleware(RootPathMiddleware, root_path=config.root_path)


async def _client_gone(request: Request, error: Exception) -> Response:
    # Nobody reads it; the status is for the log and the metrics.
    request.state.log["client_gone"] = True
    return Response(status_code=499)
