"""What a frontend needs for files and batches, made of its configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from splitserve.frontend.batches.context import BatchesContext
from splitserve.frontend.batches.place import file_store_place
from splitserve.frontend.batches.run.batch_run import BatchLimits
from splitserve.frontend.batches.run.line_call import LineCalls
from splitserve.frontend.batches.run.pace import Pace
from splitserve.frontend.batches.run.runner import BatchRunner
from splitserve.frontend.batches.store.connection import StoreConnection
from splitserve.frontend.batches.store.store import FileStore
from splitserve.frontend.database.place import is_named
from splitserve.frontend.engines.pool import EnginePool
from splitserve.frontend.http.limits import InFlightRequests
from splitserve.frontend.openai.chat import create_chat_completion
from splitserve.frontend.openai.completions import create_completion
from splitserve.frontend.openai.context import ApiContext
from splitserve.frontend.openai.vectors.embeddings import create_embeddings
from splitserve.frontend.responses.context import ResponsesContext
from splitserve.frontend.responses.responses import create_response


def make_batches(
    api: ApiContext,
    responses: ResponsesContext,
    requests: InFlightRequests,
    is_draining: Callable[[], bool],
) -> BatchesContext:
    """Return what the handlers need, with a store if the configuration names one.

    Args:
        api: of the process.
        responses: of the process.
        requests: of clients, before which batches give way.
        is_draining: whether the process is about to end.

    Raises:
        ConfigError: the place of the store is none.
    """
    config = api.config
    if not is_named(config.file_store):
        return BatchesContext(api)
    store = FileStore(StoreConnection(file_store_place(config.file_store)), config.file_store_bytes)
    calls = LineCalls(
        {
            "/v1/chat/completions": partial(create_chat_completion, api),
            "/v1/completions": partial(create_completion, api),
            "/v1/embeddings": partial(create_embeddings, api),
            "/v1/responses": partial(create_response, responses),
        }
    )
    pace = Pace(config.max_batch_concurrency, lambda: len(requests) > 0 or _has_waiting(api.pool))
    limits = BatchLimits(config.max_batch_requests, config.max_body_bytes, config.file_ttl_s)
    return BatchesContext(api, store, BatchRunner(store, calls, pace, limits, is_draining))


def _has_waiting(pool: EnginePool) -> bool:
    """Return whether a request waits for a row of an engine."""
    return any(each.stats is not None and each.stats.num_waiting > 0 for each in pool.status())
