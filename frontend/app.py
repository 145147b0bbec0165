"""The HTTP application: routes, layers and life cycle around one engine pool."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterable

import msgspec
from fastapi import FastAPI, Request, Response
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from splitserve.engine_core.errors import SplitServeError
from splitserve.frontend.config import FrontendConfig
from splitserve.frontend.engines.pool import EnginePool
from splitserve.frontend.http.auth import AuthMiddleware
from splitserve.frontend.http.connection.connection_limits import ConnectionLimits
from splitserve.frontend.http.connection.disconnect import ClientGoneError
from splitserve.frontend.http.error_handler import ErrorHandler
from splitserve.frontend.http.head_requests import HeadMiddleware
from splitserve.frontend.http.limits import LimitsMiddleware, OpenRequests
from splitserve.frontend.http.request_log import RequestLogMiddleware
from splitserve.frontend.http.response.keep_alive import KeepAlive
from splitserve.frontend.http.root_path import RootPathMiddleware
from splitserve.frontend.http.slices import SliceQueue
from splitserve.frontend.launch import Launch
from splitserve.frontend.metrics.engines import collect_engines, collect_pool
from splitserve.frontend.metrics.process import FrontendMetrics
from splitserve.frontend.metrics.queues import collect_queues
from splitserve.frontend.metrics.scrape import Scrape
from splitserve.frontend.openai.chat import create_chat_completion
from splitserve.frontend.openai.completions import create_completion
from splitserve.frontend.openai.context import VERSION, ApiContext
from splitserve.frontend.openai.models import get_model, list_models
from splitserve.frontend.openai.tokenize import detokenize, tokenize
from splitserve.frontend.openai.tokenizer_info import tokenizer_info
from splitserve.frontend.openapi import install_openapi
from splitserve.frontend.operator.debug_requests import list_requests, show_request
from splitserve.frontend.operator.health import HealthProbe
from splitserve.frontend.operator.load import server_load
from splitserve.frontend.unknown_fields import UnknownFields


class AppOwners:
    """What the server around the app needs of it, kept in app.state.owners.

    Attributes:
        requests: the requests in progress, for shutdown.
        health: the probe, told of a shutdown first.
        connections: the open connections.
    """

    def __init__(self, config: FrontendConfig, pool: EnginePool) -> None:
        self.connections = ConnectionLimits(config)
        self.requests = OpenRequests(config.max_open_requests, config.write_stall_s)
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

    scrape = Scrape(pool, _EngineFigures(pool), _OwnFigures(context, owners), launch)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        async with owners.requests.watching(), scrape.answering():
            yield

    app = FastAPI(
        title="SplitServe",
        version=VERSION,
        docs_url=None if config.disable_docs else "/docs",
        redoc_url=None,
        openapi_url=None if config.disable_docs else "/openapi.json",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.owners = owners
    _add_api_routes(app, context)
    _add_operator_routes(app, context, owners, scrape)
    _expect_routes(app, metrics)
    install_openapi(app, with_keys=bool(config.api_key_hashes), max_logprobs=config.max_logprobs)
    _add_layers(app, context, owners)
    return app


def _add_api_routes(app: FastAPI, context: ApiContext) -> None:
    @app.post("/v1/completions", tags=["generation"], summary="Complete a text")
    async def completions(request: Request) -> Response:
        return await create_completion(context, request)

    @app.post("/v1/chat/completions", tags=["generation"], summary="Continue a conversation")
    async def chat_completions(request: Request) -> Response:
        return await create_chat_completion(context, request)

    @app.get("/v1/models", tags=["models"], summary="List the models served now")
    async def models() -> Response:
        return await list_models(context)

    @app.get("/v1/models/{model_id:path}", tags=["models"], summary="Describe one model")
    async def model(model_id: str) -> Response:
        return await get_model(context, model_id)

    @app.post("/tokenize", tags=["tokens"], summary="Encode a text or a conversation")
    async def tokenize_route(request: Request) -> Response:
        return await tokenize(context, request)

    @app.post("/detokenize", tags=["tokens"], summary="Decode token ids")
    async def detokenize_route(request: Request) -> Response:
        return await detokenize(context, request)

    if context.config.enable_tokenizer_info_endpoint:

        @app.get("/tokenizer_info", tags=["tokens"], summary="The tokenizer's configuration")
        async def tokenizer_info_route(request: Request) -> Response:
            return await tokenizer_info(context, request)


def _add_operator_routes(app: FastAPI, context: ApiContext, owners: AppOwners, scrape: Scrape) -> None:
    @app.get("/live", tags=["operation"], summary="The process runs; needs no key")
    async def live() -> Response:
        return Response(b'{"status":"ok"}', media_type="application/json")

    @app.get("/health", tags=["operation"], summary="An engine answered through its busy loop")
    async def health() -> Response:
        return await owners.health.check()

    @app.get("/ready", tags=["operation"], summary="As /health")
    async def ready() -> Response:
        return await owners.health.check()

    @app.get("/ping", tags=["operation"], summary="As /health")
    @app.post("/ping", tags=["operation"], summary="As /health")
    async def ping() -> Response:
        return await owners.health.check()

    @app.get("/load", tags=["operation"], summary="Requests in progress in this process")
    async def load() -> Response:
        return await server_load(owners.requests)

    @app.get("/version", tags=["operation"], summary="The version of this software")
    async def version() -> Response:
        return Response(msgspec.json.encode({"version": VERSION}), media_type="application/json")

    @app.get("/debug/requests", tags=["operation"], summary="Your open requests, and what they wait for")
    async def debug_requests(request: Request) -> Response:
        return await list_requests(context, request)

    @app.get("/debug/requests/{request_id}", tags=["operation"], summary="Why does this request wait")
    async def debug_request(request: Request, request_id: str) -> Response:
        return await show_request(context, request, request_id)

    @app.get("/metrics", tags=["operation"], summary="Prometheus metrics")
    async def metrics() -> Response:
        return await scrape.answer()


def _expect_routes(app: FastAPI, metrics: FrontendMetrics) -> None:
    for route in app.routes:
        if isinstance(route, Route):
            for method in (route.methods or set()) - {"HEAD"}:
                metrics.http.expect(route.path, method)


def _add_layers(app: FastAPI, context: ApiContext, owners: AppOwners) -> None:
    """Stack the layers, innermost first: HEAD, limits, keys, CORS (preflights carry no key), log, prefix."""
    config = context.config
    errors = ErrorHandler(has_docs=not config.disable_docs)
    app.add_exception_handler(SplitServeError, errors.handle)
    app.add_exception_handler(HTTPException, errors.handle)
    app.add_exception_handler(ClientGoneError, _client_gone)
    app.add_exception_handler(ClientDisconnect, _client_gone)
    app.add_middleware(HeadMiddleware)
    app.add_middleware(LimitsMiddleware, config=config, requests=owners.requests)
    app.add_middleware(AuthMiddleware, config=config)
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=config.allowed_methods,
            allow_headers=config.allowed_headers,
            allow_credentials=config.allow_credentials,
            expose_headers=("x-request-id", "retry-after"),
        )
    app.add_middleware(RequestLogMiddleware, metrics=context.metrics)
    if config.root_path:
        app.add_middleware(RootPathMiddleware, root_path=config.root_path)


async def _client_gone(request: Request, error: Exception) -> Response:
    # Nobody reads it; the status is for the log and the metrics.
    request.state.log["client_gone"] = True
    return Response(status_code=499)


class _EngineFigures(Collector):
    """Collects the engines' figures at each scrape."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool

    def collect(self) -> Iterable[Metric]:
        """Yield all families."""
        yield from collect_engines(self._pool.status())
        yield from collect_queues(self._pool.status())


class _OwnFigures(Collector):
    """Collects this frontend's figures at each scrape."""

    def __init__(self, context: ApiContext, owners: AppOwners) -> None:
        self._context = context
        self._owners = owners

    def collect(self) -> Iterable[Metric]:
        """Yield all families."""
        pool, metrics, owners = self._context.pool, self._context.metrics, self._owners
        for status in pool.status():
            if status.model is not None:
                # Its histograms begin with no request.
                metrics.model(status.model.names[0])
        yield from collect_pool(pool.status(), pool.stats(), metrics.frontend_id)
        yield from metrics.collect(len(owners.requests), owners.connections.num_open)
