"""Calls of frontends that load and unload adapters, and what all frontends, and a successor, learn of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import msgspec

from splitserve.engine_core.engine.adapters.owner import Adapters
from splitserve.engine_core.errors import ConfigError, InvalidRequestError
from splitserve.engine_core.ipc.messages import AdaptersChanged, Call, CallKind, CallResult, EngineMessage
from splitserve.engine_core.kept.adapters import KeptAdapters
from splitserve.engine_core.process.logs import log_event

_log = logging.getLogger("engine_core")


class AdapterCalls:
    """Answers the calls; owned by the busy loop's thread.

    Args:
        epoch: of the engine.
        post: sends a message to a frontend, if that is still there.
        post_all: sends one to every frontend.
        kept: where a successor finds what was loaded; None if none can.
    """

    def __init__(
        self,
        epoch: int,
        post: Callable[[bytes, EngineMessage], None],
        post_all: Callable[[EngineMessage], None],
        kept: KeptAdapters | None = None,
    ) -> None:
        self._epoch = epoch
        self._kept = kept
        self._post = post
        self._post_all = post_all

    def restore(self, adapters: Adapters, place: Callable[[str], str]) -> None:
        """Have a new engine know what its predecessor had loaded.

        Args:
            adapters: of the engine.
            place: returns where an adapter is that a call names; refuses what may not be loaded.
        """
        for info in self._kept.read() if self._kept is not None else ():
            try:
                adapters.restore(msgspec.structs.replace(info, path=place(info.path)))
            except InvalidRequestError as error:
                log_event(_log, logging.WARNING, "adapter_forgotten", error, name=info.name, path=info.path)

    def forget(self) -> None:
        """The engine has ended in good order, and no successor goes on."""
        if self._kept is not None:
            self._kept.remove()

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
            self._keep(adapters)

    def _keep(self, adapters: Adapters) -> None:
        if self._kept is not None:
            try:
                self._kept.write(adapters.added())
            except (OSError, ConfigError) as error:
                # A full disk is no reason not to serve them.
                log_event(_log, logging.WARNING, "adapters are not kept for a successor", error)

    def _loaded(self, identity: bytes, call_id: int, adapters: Adapters, problem: str) -> None:
        # Whoever asked may use it as soon as it knows.
        self.tell(adapters)
        self._post(identity, CallResult(call_id, ok=not problem, message=problem, status=400))
