"""What the handlers of the Responses API need of their process, and the ids of responses."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace

from starlette.requests import Request

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.http.dialect import OPENAI
from splitserve.frontend.http.errors import HttpError
from splitserve.frontend.openai.context import ApiContext
from splitserve.frontend.response_store.rows import RowKey
from splitserve.frontend.response_store.store import ResponseStore
from splitserve.frontend.responses.compaction.summary_seal import SummarySeal
from splitserve.frontend.responses.kept.background import BackgroundRuns

# As frontend.http.request_log has the ids of requests.
_ID = re.compile(r"resp_[A-Za-z0-9._:\-]{1,100}", re.ASCII)
# As OpenAI's other streams, but for the end, which the last event tells.
RESPONSES = replace(OPENAI, end=b"")
NO_STORE = "this server has no response store (--response-store)"


@dataclass(slots=True, frozen=True)
class ResponsesContext:
    """Owners that a handler works with; one per process.

    Attributes:
        api: what the handlers of all of OpenAI's API need.
        store: of responses, None if this server has none.
        background: the responses that are generated without a client; None without a store.
        seal: of summaries that stand for conversations.
    """

    api: ApiContext
    store: ResponseStore | None = None
    background: BackgroundRuns | None = None
    seal: SummarySeal = field(default_factory=SummarySeal)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Look after the store and the background while the context is open."""
        async with contextlib.AsyncExitStack() as stack:
            if self.store is not None:
                await stack.enter_async_context(self.store.running())
            if self.background is not None:
                timeout_s = self.api.config.shutdown_timeout_s
                await stack.enter_async_context(self.background.running(timeout_s))
            yield


def is_response_id(text: str) -> bool:
    """Return whether a text can be the id of a response."""
    return _ID.fullmatch(text) is not None


def row_key(request: Request, response_id: str) -> RowKey:
    """Return where the response of a request's tenant is kept."""
    return RowKey(getattr(request.state, "tenant", ""), response_id)


def no_such_response(response_id: str, context: ResponsesContext) -> HttpError:
    """Make the error for a response that is not kept, in OpenAI's words."""
    why = "" if context.store is not None else f" Nothing is kept: {NO_STORE}."
    return HttpError(404, "response_not_found", f"Response with id '{response_id[:128]}' not found.{why}")


def needs_store(name: str) -> InvalidRequestError:
    """Make the error for a field that cannot be served without a store."""
    return InvalidRequestError(f"{name}: {NO_STORE}", name, "unsupported_parameter")
