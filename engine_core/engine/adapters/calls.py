"""Calls of frontends that load and unload adapters, and what all frontends are told of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from splitserve.engine_core.engine.adapters.owner import Adapters
from splitserve.engine_core.ipc.messages import AdaptersChanged, Call, CallKind, CallResult, EngineMessage


class AdapterCalls:
    """Answers the calls; owned by the busy loop's thread.

    Args:
        epoch: of the engine.
        post: sends a message to a frontend, if that is still there.
        post_all: sends one to every frontend.
    """

    def __init__(
        self,
        epoch: int,
        post: Callable[[bytes, EngineMessage], None],
        post_all: Callable[[EngineMessage], None],
    ) -> None:
        self._epoch = epoch
        self._post = post
        self._post_all = post_all

    def answer(self, identity: bytes, call: Call, path: str, adapters: Adapters) -> None:
        """Load or unload an adapter; the result is sent once that is done.

        Args:
            identity: of the frontend.
            call: for one of both.
            path: of the adapter's directory, which may be read.
            adapters: of the engine.

        Raises:
            InvalidRequestError: the call is refused.
        """
        if call.kind is CallKind.LOAD_ADAPTER:
            adapters.load(call.adapter, path, partial(self._loaded, identity, call.call_id, adapters))
            return
        adapters.unload(call.adapter)
        self._loaded(identity, call.call_id, adapters, "")

    def tell(self, adapters: Adapters) -> None:
        """Tell every frontend which adapters there are, if these are others than before."""
        if adapters.has_changed:
            adapters.has_changed = False
            self._post_all(AdaptersChanged(self._epoch, adapters.listed()))

    def _loaded(self, identity: bytes, call_id: int, adapters: Adapters, problem: str) -> None:
        # Whoever asked may use it as soon as it knows.
        self.tell(adapters)
        self._post(identity, CallResult(call_id, ok=not problem, message=problem, status=400))
