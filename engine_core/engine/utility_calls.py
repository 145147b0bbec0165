"""Calls of frontends beside their requests: what is answered at once, and what later."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from splitserve.engine_core.checkpoint.adapter.place import place_below
from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.engine.adapters.calls import AdapterCalls
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.errors import SplitServeError
from splitserve.engine_core.ipc.messages import Call, CallKind, CallResult, EngineMessage, LogLevelSet
from splitserve.engine_core.ipc.wire import LogLevelName
from splitserve.engine_core.kept.adapters import KeptAdapters

MAX_CALL_IDS = 16


class UtilityCalls:
    """Answers the calls; owned by the busy loop's thread.

    Args:
        epoch: of the engine.
        config: of the engine.
        post: sends a message to a frontend, if that is still there.
        post_all: sends one to every frontend.

    Attributes:
        adapters: answers those that concern adapters.
        on_log_level: has this process and the workers log from another level on.
        on_sleep: has the workers give up memory, or refuses to; is told whether they keep the weights, and
            what to call once the memory is free.
        on_wake_up: has them take it again.
    """

    on_log_level: Callable[[LogLevelName], None] = staticmethod(lambda level: None)

    on_sleep: Callable[[bool, Callable[[], None]], None] = staticmethod(lambda keeps_weights, done: None)
    on_wake_up: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        epoch: int,
        config: EngineConfig,
        post: Callable[[bytes, EngineMessage], None],
        post_all: Callable[[EngineMessage], None],
    ) -> None:
        # Where an adapter is that a call names; it refuses what may not be loaded.
        self._place = partial(place_below, config.lora_dir)
        # Where none can be loaded, none has to be found again.
        kept = KeptAdapters.of(config.listen) if config.lora_dir else None
        self._post = post
        self._post_all = post_all
        self.adapters = AdapterCalls(epoch, post, post_all, kept)

    def restore(self, engine: EngineCore) -> None:
        """Have a new engine know the adapters that its predecessor had loaded."""
        self.adapters.restore(engine.adapters, self._place)

    def answer(self, identity: bytes, call: Call, engine: EngineCore) -> None:
        """Do what a frontend asks, and post the result; that of loading an adapter once it is loaded."""
        match call.kind:
            case CallKind.EXPLAIN_REQUESTS:
                requests = engine.explain(call.request_ids[:MAX_CALL_IDS], call.tenant)
                self._post(identity, CallResult(call.call_id, ok=True, requests=requests))
            case CallKind.RESET_PREFIX_CACHE:
                num_blocks = engine.reset_prefix_cache()
                self._post(identity, CallResult(call.call_id, ok=True, num_blocks=num_blocks))
            case CallKind.VIEW_ENGINE:
                view = engine.view(call.tenant)
                self._post(identity, CallResult(call.call_id, ok=True, view=view))
            case CallKind.SET_LOG_LEVEL:
                self.on_log_level(call.log_level)
                self._post_all(LogLevelSet(call.log_level))
                self._post(identity, CallResult(call.call_id, ok=True))
            case CallKind.SLEEP:
                done = partial(self._post, identity, CallResult(call.call_id, ok=True))
                try:
                    self.on_sleep(call.keeps_weights, done)
                except SplitServeError as error:
                    self._refuse(identity, call, error)
            case CallKind.WAKE_UP:
                try:
                    self.on_wake_up()
                    self._post(identity, CallResult(call.call_id, ok=True))
                except SplitServeError as error:
                    self._refuse(identity, call, error)
            case CallKind.LOAD_ADAPTER | CallKind.UNLOAD_ADAPTER:
                try:
                    self.adapters.answer(identity, call, self._place(call.path), engine.adapters)
                except SplitServeError as error:
                    self._refuse(identity, call, error)

    def _refuse(self, identity: bytes, call: Call, error: SplitServeError) -> None:
        result = CallResult(call.call_id, ok=False, message=str(error), status=error.status)
        self._post(identity, result)
