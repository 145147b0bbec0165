"""What the handlers of files and batches need of their process, ids, and the errors that both know."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from starlette.requests import Request

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.batches.run.runner import BatchRunner
from splitserve.frontend.batches.store.store import FileStore
from splitserve.frontend.batches.store.tables import Key, Page
from splitserve.frontend.http.errors import HttpError
from splitserve.frontend.openai.context import ApiContext

NO_STORE = "this server has no file store (--file-store)"
_ID = re.compile(r"(file-|batch_)[A-Za-z0-9._:\-]{1,100}", re.ASCII)
_ORDERS = ("asc", "desc")


@dataclass(slots=True, frozen=True)
class BatchesContext:
    """Owners that a handler works with; one per process.

    Attributes:
        api: what the handlers of all of OpenAI's API need.
        kept: of files and batches, None if this server has no file store.
        runner: works on the batches; None without a store.
    """

    api: ApiContext
    kept: FileStore | None = None
    runner: BatchRunner | None = None

    @property
    def store(self) -> FileStore:
        """The store.

        Raises:
            HttpError: 404, there is none.
        """
        if self.kept is None:
            raise HttpError(404, "no_file_store", f"Files and batches are not kept: {NO_STORE}.")
        return self.kept

    def wake(self) -> None:
        """Let the runner look at once."""
        if self.runner is not None:
            self.runner.wake()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Look after the store and the batches while the context is open."""
        async with contextlib.AsyncExitStack() as stack:
            if self.kept is not None:
                await stack.enter_async_context(self.kept.running())
            if self.runner is not None:
                await stack.enter_async_context(self.runner.running())
            yield


def tenant_of(request: Request) -> str:
    """Return whose files a request may see."""
    tenant: str = getattr(request.state, "tenant", "")
    return tenant


def key_of(request: Request, name: str, kind: str) -> Key:
    """Return where something of a request's tenant is kept.

    Args:
        request: of HTTP.
        name: id that it asks for.
        kind: "file" or "batch".

    Raises:
        HttpError: 404, it can be the id of nothing.
    """
    if _ID.fullmatch(name) is None:
        raise not_found(name, kind)
    return Key(tenant_of(request), name)


def not_found(name: str, kind: str) -> HttpError:
    """Make the error for what is not kept."""
    message = f"No such {kind} object: {name[:128]!r}."
    return HttpError(404, "file_not_found" if kind == "file" else "batch_not_found", message)


def read_page(query: Mapping[str, str], default: int, largest: int) -> Page:
    """Return the page that a list is asked for.

    Raises:
        InvalidRequestError: a parameter has a wrong value.
    """
    text, order, after = query.get("limit", str(default)), query.get("order", "desc"), query.get("after", "")
    limit = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    if not 1 <= limit <= largest:
        raise InvalidRequestError(f"limit must be an integer from 1 to {largest}, got {text[:64]!r}", "limit")
    if order not in _ORDERS:
        raise InvalidRequestError(f"order must be {' or '.join(_ORDERS)}, got {order[:64]!r}", "order")
    if after and _ID.fullmatch(after) is None:
        raise InvalidRequestError(f"after must be an id of the list, got {after[:128]!r}", "after")
    return Page(limit, after, order == "asc")
