"""One engine of the pool: its connection, and the text side of its model, loaded once the engine is ready."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence

import zmq

from splitserve.engine_core.config import software_version
from splitserve.engine_core.errors import EngineUnavailableError, ModelLoadError
from splitserve.engine_core.ipc.curve import ClientKeys
from splitserve.engine_core.ipc.messages import CallKind, Ready
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.frontend.engines.connection.client import EngineClient
from splitserve.frontend.engines.connection.session import EngineSession, EngineState
from splitserve.frontend.engines.status import EngineStatus, Explanation, ServedModel
from splitserve.frontend.text.model_assets import ModelAssets, load_model_assets

logger = logging.getLogger(__name__)

_MAX_CACHED_MODELS = 8


class AssetsCache:
    """Loads each model's assets once for all engines that serve it; keeps those of the last few models."""

    def __init__(self, directory: str = "") -> None:
        self._directory = directory
        self._lock = asyncio.Lock()
        self._loaded: dict[str, tuple[ModelInfo, ModelAssets, int]] = {}

    async def get(self, info: ModelInfo) -> tuple[ModelAssets, int]:
        """Return the assets and the Unix time at which they were first loaded.

        Raises:
            ModelLoadError: names the file that is missing or wrong.
        """
        async with self._lock:
            known = self._loaded.get(info.path)
            if known is None or known[0] != info:
                assets = await asyncio.to_thread(load_model_assets, info, self._directory)
                known = self._loaded[info.path] = (info, assets, int(time.time()))
                if len(self._loaded) > _MAX_CACHED_MODELS:
                    del self._loaded[next(iter(self._loaded))]
            return known[1:]

    async def close(self) -> None:
        """End the processes of their chat templates; what is cached is forgotten."""
        async with self._lock:
            loaded, self._loaded = list(self._loaded.values()), {}
        for _, assets, _ in loaded:
            if assets.chat_template is not None:
                assets.chat_template.close()


class PoolMember:
    """One engine; belongs to the pool's event loop.

    Attributes:
        served: its model while it takes requests or drains, None otherwise.
    """

    def __init__(self, client: EngineClient, assets: AssetsCache, on_change: Callable[[], None]) -> None:
        """Wrap a client; the pool calls session_changed() for it.

        Args:
            client: not yet started.
            assets: shared by the members of a pool.
            on_change: called when state or model changed.
        """
        self.client = client
        self.session = client.session
        self._assets = assets
        self._on_change = on_change
        self._model: ServedModel | None = None
        self._assets_error = ""
        self._loader: asyncio.Task[None] | None = None

    @property
    def served(self) -> ServedModel | None:
        """The model while the engine is ready or draining and its assets are loaded."""
        serving = self.session.state in (EngineState.READY, EngineState.DRAINING)
        current = self._model is not None and self._model.epoch == self._epoch
        return self._model if serving and current else None

    @property
    def takes_requests(self) -> bool:
        """Whether a new request may go here."""
        return self.session.state is EngineState.READY and self.served is not None

    @property
    def num_open(self) -> int:
        """Sequences of this frontend that are open on it."""
        return len(self.session.sequences)

    @property
    def loads_assets(self) -> bool:
        """Whether the engine is ready and only the text side of its model is still to come."""
        return self._lacks_assets and not self._assets_error

    @property
    def state(self) -> str:
        """Its state as EngineStatus has it; an engine whose tokenizer is still to be loaded is loading."""
        if self._lacks_assets:
            return "refused" if self._assets_error else "loading"
        return self.session.state.value

    def session_changed(self) -> None:
        """Load the assets when the engine has become ready in a new life; tell the pool."""
        ready = self.session.ready
        if self._lacks_assets and ready is not None:
            if self._loader is not None:
                self._loader.cancel()
            self._assets_error = ""
            self._loader = asyncio.create_task(self._load(ready))
        self._on_change()

    def status(self) -> EngineStatus:
        """Return what is known of the engine."""
        session, loading = self.session, self.session.loading
        age_s = (
            None if session.last_pong_s is None else asyncio.get_running_loop().time() - session.last_pong_s
        )
        is_loading = session.state is EngineState.LOADING and loading is not None
        return EngineStatus(
            address=session.address,
            state=self.state,
            engine_id=session.ready.engine_id if session.ready else loading.engine_id if loading else "",
            stage="tokenizer" if self._lacks_assets else loading.stage if is_loading and loading else "",
            fraction=loading.fraction if is_loading and loading else 0.0,
            message=self._assets_error or session.message,
            last_pong_age_s=age_s,
            num_open=self.num_open,
            epoch=self._epoch,
            model=self.served,
            stats=session.last_pong.stats if session.last_pong else None,
            queue=session.last_pong.queue if session.last_pong else None,
        )

    async def answers(self, timeout_s: float) -> bool:
        """Whether the busy loop answers a ping in time."""
        try:
            await self.client.ping(timeout_s)
        except EngineUnavailableError:
            return False
        return True

    async def explain(self, request_ids: Sequence[str], tenant: str, timeout_s: float) -> Explanation:
        """Ask where open requests stand; no answer in time is an outcome too."""
        address = self.session.address
        try:
            result = await self.client.call(CallKind.EXPLAIN_REQUESTS, timeout_s, request_ids, tenant)
        except EngineUnavailableError:
            return Explanation(address, False)
        return Explanation(address, result.ok, result.requests)

    async def close(self) -> None:
        """Abort what is open and disconnect."""
        if self._loader is not None:
            self._loader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loader
        await self.client.close()

    @property
    def _lacks_assets(self) -> bool:
        return self.session.state is EngineState.READY and self.served is None

    @property
    def _epoch(self) -> int:
        return self.session.ready.epoch if self.session.ready else 0

    async def _load(self, ready: Ready) -> None:
        try:
            assets, created = await self._assets.get(ready.model)
        except ModelLoadError as error:
            self._assets_error = str(error)
            logger.error("engine %s cannot be used: %s", self.session.address, error)
        except Exception as error:
            # A bug of ours that one model's files find must not leave its engine loading for ever.
            self._assets_error = f"{type(error).__name__} while loading the tokenizer"
            logger.exception("engine %s cannot be used", self.session.address)
        else:
            self._model = ServedModel(
                names=tuple(ready.served_model_names) or (ready.model.path,),
                info=ready.model,
                assets=assets,
                epoch=ready.epoch,
                max_num_seqs=ready.max_num_seqs,
                max_logprobs=ready.max_logprobs,
                created=created,
                max_num_waiting=ready.max_num_waiting,
            )
        self._on_change()


def make_member(
    context: zmq.Context[zmq.Socket[bytes]],
    address: str,
    frontend_id: str,
    keys: ClientKeys | None,
    assets: AssetsCache,
    on_change: Callable[[], None],
    *,
    allow_insecure_tcp: bool = False,
) -> PoolMember:
    """Make a member with its session and client, not yet started."""
    session = EngineSession(frontend_id, software_version(), address)
    client = EngineClient(context, session, keys, allow_insecure_tcp=allow_insecure_tcp)
    member = PoolMember(client, assets, on_change)
    client.on_change = member.session_changed
    return member
