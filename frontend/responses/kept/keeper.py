"""Is a response kept, and what does its client hear if that fails?

store    answer                                     the store fails
false    says store: false                          -
true     says store: true, once it is kept          an error; nothing is generated if that is known before
absent   as true, if this server has a store        says store: false, and so does the request log
"""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.http.response.json_pieces import JsonPieces
from splitserve.frontend.http.slices import SliceQueue
from splitserve.frontend.response_store.errors import RecordTooLargeError, StoreUnavailableError
from splitserve.frontend.response_store.records import Record
from splitserve.frontend.response_store.rows import RowKey
from splitserve.frontend.response_store.store import ResponseStore
from splitserve.frontend.responses.context import ResponsesContext, needs_store
from splitserve.frontend.responses.kept.memory import memory_of
from splitserve.frontend.responses.schema.request import ResponsesRequest
from splitserve.frontend.responses.snapshot import Snapshot


def store_of(context: ResponsesContext, request: Request, body: ResponsesRequest) -> ResponseStore | None:
    """Return the store that a response is to be kept in, None for none.

    Raises:
        InvalidRequestError: the request asks for what this server cannot keep.
        StoreUnavailableError: the store it asks for has just failed.
    """
    if body.background and body.store is False:
        raise InvalidRequestError("background: true requires store: true", "background")
    for name in ("store", "background"):
        if getattr(body, name) and context.store is None:
            raise needs_store(name)
    if body.store is False or context.store is None:
        return None
    if context.store.is_failing:
        if is_demanded(body):
            raise StoreUnavailableError("it failed a moment ago")
        request.state.log["not_kept"] = StoreUnavailableError.code
        return None
    return context.store


def is_demanded(body: ResponsesRequest) -> bool:
    """Return whether a request rather fails than is not kept."""
    return bool(body.store or body.background)


class Keeper:
    """Keeps one response when it has ended.

    Attributes:
        key: where it is kept.
        is_stored: whether it will be in the store.
    """

    def __init__(
        self, store: ResponseStore | None, key: RowKey, items: bytes, request: Request, body: ResponsesRequest
    ) -> None:
        """Prepare.

        Args:
            store: to keep it in; None if only the request's socket remembers it.
            key: of the response.
            items: all of its input, as JSON.
            request: whose log tells if it is not kept.
            body: of the request.
        """
        self._store = store
        self._memory = memory_of(request)
        self.key = key
        self.is_stored = store is not None
        self._items = items
        self._created_s = time.time()
        self._log: dict[str, object] = request.state.log
        self._demanded = is_demanded(body)
        self._has_events = bool(body.background and body.stream)

    def record(self, response: bytes, owner: str = "") -> Record:
        """Return what is kept of the response as it stands."""
        return Record(self._created_s, response, self._items, self._has_events, owner)

    async def keep(self, snapshot: Snapshot, slices: SliceQueue) -> bytes:
        """Keep a response that has ended; return it as JSON, which says whether it is kept.

        Raises:
            StoreUnavailableError, RecordTooLargeError: it is not, and that was demanded.
        """
        response = await ended_json(snapshot, slices)
        if self._store is not None and not await self._put(self._store, response):
            snapshot.is_kept = False
            response = await ended_json(snapshot, slices)
        if self._memory is not None:
            self._memory.put(self.key, self.record(response))
        return response

    async def _put(self, store: ResponseStore, response: bytes) -> bool:
        try:
            await store.put(self.key, self.record(response))
        except (StoreUnavailableError, RecordTooLargeError) as error:
            if self._demanded:
                raise
            self._log |= {"not_kept": error.code, "detail": str(error)}
            return False
        return True


async def ended_json(snapshot: Snapshot, slices: SliceQueue) -> bytes:
    """Return a response that has ended as JSON, made in slices if it is large."""
    pieces = JsonPieces()
    text = msgspec.json.encode(snapshot.ended(pieces))
    if not pieces.has_parts:
        return text
    made = []
    for piece in pieces.fill(text):
        made.append(piece)
        await slices.turn()
    return b"".join(made)
