"""A response without a client: what a request with background: true starts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.types import Message

from splitserve.engine_core.process.logs import log_event
from splitserve.frontend.engines.generation import OutputDelta
from splitserve.frontend.http.errors import error_body
from splitserve.frontend.http.slices import SliceQueue
from splitserve.frontend.observability.request_trace import STATE
from splitserve.frontend.openai.generation_run import GenerationRun
from splitserve.frontend.response_store.records import Record
from splitserve.frontend.responses.event_writer import EventWriter
from splitserve.frontend.responses.kept.keeper import Keeper, ended_json
from splitserve.frontend.responses.output import Output
from splitserve.frontend.responses.snapshot import Snapshot

logger = logging.getLogger("frontend")


def without_client(request: Request) -> Request:
    """Return a request like another, untraced, with a log of its own, and a client that never hangs up."""
    state = {**request.scope["state"], "log": {}, STATE: None}
    return Request({**request.scope, "state": state}, _never)


async def _never() -> Message:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nothing ends it")


class UnattendedResponse:
    """One such response; see frontend.responses.kept.background.

    Attributes:
        key: where it is kept.
    """

    def __init__(
        self,
        request: Request,
        run: GenerationRun,
        output: Output,
        snapshot: Snapshot,
        keeper: Keeper,
        slices: SliceQueue,
        writer: EventWriter | None = None,
    ) -> None:
        """Prepare.

        Args:
            request: without a client.
            run: of the request.
            output: of the run.
            snapshot: of the response.
            keeper: of the response.
            slices: of the process.
            writer: of its events, all but the last; None if nobody wants them.
        """
        self.key = keeper.key
        self._request = request
        self._run = run
        self._output = output
        self._snapshot = snapshot
        self._keeper = keeper
        self._slices = slices
        self._writer = writer

    def record(self, response: bytes, owner: str = "") -> Record:
        """As Unattended."""
        return self._keeper.record(response, owner)

    def queued(self) -> bytes:
        """As Unattended."""
        return msgspec.json.encode(self._snapshot.begun("queued"))

    def in_progress(self) -> bytes:
        """As Unattended."""
        return msgspec.json.encode(self._snapshot.begun())

    async def run(self, on_begun: Callable[[], None], on_events: Callable[[bytes], None]) -> bytes:
        """As Unattended."""

        def read(delta: OutputDelta) -> None:
            on_begun()
            if self._writer is None:
                self._output.read(delta)
                return
            event = self._writer.chunk(0, delta)
            on_events(event if isinstance(event, bytes) else b"".join(event))

        if self._writer is not None:
            on_events(self._writer.first_events())
        await self._run.collect(self._request, read)
        response = await ended_json(self._snapshot, self._slices)
        self._tell(self._output.finish_reason or "")
        return response

    def failed(self, error: Exception, *, with_output: bool = True) -> bytes:
        """As Unattended."""
        _, body = error_body(error)
        self._tell(body.error.code or body.error.type, detail=str(error))
        return msgspec.json.encode(self._snapshot.failed(body.error, with_output=with_output))

    def _tell(self, end: str, **fields: object) -> None:
        """Log the end: the line of the request stands at its beginning."""
        found: dict[str, object] = self._request.state.log
        log_event(logger, logging.INFO, "background_response", end=end, **found, **fields)
