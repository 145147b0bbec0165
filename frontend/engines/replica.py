"""One engine of the pool: its connection, and its model's tokenizer and templates, loaded once ready."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence

from splitserve.engine_core.errors import ConfigError, EngineUnavailableError, ModelLoadError, SplitServeError
from splitserve.engine_core.ipc.messages import AddRequest, Call, CallKind, CallResult, Loading, Ready
from splitserve.engine_core.ipc.wire import ASLEEP
from splitserve.engine_core.process.logs import log_event
from splitserve.frontend.engines.assets_cache import AssetsCache
from splitserve.frontend.engines.connection.client import EngineClient
from splitserve.frontend.engines.connection.displacement import DisplacedBy
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.connection.session import SERVING, EngineState
from splitserve.frontend.engines.failover.owner import Failover
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.engines.status import STARTING, EngineStatus, PoolStats

logger = logging.getLogger(__name__)


class EngineReplica:
    """One engine of a pool; belongs to the pool's event loop.

    Attributes:
        client: its connection, through which requests are sent.
        gone_since_s: when it was lost, began to recover, or handed over; None if it has not served yet, or
            serves.
    """

    def __init__(
        self, client: EngineClient, assets: AssetsCache, failover: Failover, on_change: Callable[[], None]
    ) -> None:
        """Take ownership of a client; start() connects it.

        Args:
            client: not yet started.
            assets: shared by the replicas of a pool.
            failover: owns the sequences that the engine loses.
            on_change: called when the state or the model has changed.
        """
        self.client = client
        self._session = client.session
        self._assets = assets
        self._failover = failover
        self._on_change = on_change
        self._model: ServedModel | None = None
        self._assets_error = ""
        self._loader: asyncio.Task[None] | None = None
        self._num_losses = 0
        self.gone_since_s: float | None = None
        client.session.owner = self
        client.on_change = self._session_changed

    @property
    def address(self) -> str:
        """ZMQ address of the engine."""
        return self._session.address

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine, so that a connection breaks only when a process ends."""
        return self._session.address.startswith("ipc://")

    @property
    def served(self) -> ServedModel | None:
        """The model while the engine is ready, draining or recovering, and its assets are loaded."""
        serving = self._session.state in SERVING
        if not serving or self._model is None or self._model.epoch != self._epoch:
            return None
        adapters = self.client.adapters
        if adapters is not None and adapters.epoch == self._epoch:
            self._model = self._model.with_adapters(adapters.adapters)
        return self._model

    @property
    def takes_requests(self) -> bool:
        """Whether a new request may be sent here."""
        return self._session.state is EngineState.READY and self.served is not None

    @property
    def known_names(self) -> tuple[str, ...]:
        """Names of the model and the adapters that it served last, or serves."""
        return self._model.all_names if self._model is not None else ()

    @property
    def takes_model(self) -> str | None:
        """Identity of the model for which a request may be sent here; None if none may."""
        served = self.served if self._session.state is EngineState.READY else None
        return None if served is None else served.identity

    @property
    def max_model_len(self) -> int:
        """Most tokens that a sequence may have there; 0 while it has said nothing."""
        return self._session.ready.model.max_model_len if self._session.ready else 0

    @property
    def numerics(self) -> str:
        """What decides the last bit of its results; "" while it has said nothing."""
        return self._session.ready.model.numerics if self._session.ready else ""

    @property
    def num_rows(self) -> int:
        """Number of sequences, of all frontends, that it runs at once; 0 while it has said nothing."""
        return self._session.ready.max_num_seqs if self._session.ready else 0

    @property
    def num_open(self) -> int:
        """Number of this frontend's sequences that are open on it."""
        return len(self._session.sequences)

    @property
    def loads_assets(self) -> bool:
        """Whether the engine is ready and only its model's tokenizer and templates are still being loaded."""
        return self._lacks_assets and not self._assets_error

    @property
    def state(self) -> str:
        """Its state as in EngineStatus; an engine whose tokenizer is still being loaded counts as loading."""
        if self._lacks_assets:
            return "refused" if self._assets_error else "loading"
        session = self._session
        if session.state is EngineState.RECOVERING and session.loading and session.loading.stage == ASLEEP:
            return ASLEEP
        return session.state.value

    def _session_changed(self) -> None:
        """Load the assets when the engine becomes ready after a start or restart; notify the pool."""
        ready = self._session.ready
        if self._lacks_assets and ready is not None:
            if self._loader is not None:
                self._loader.cancel()
            self._assets_error = ""
            self._loader = asyncio.create_task(self._load(ready))
        self._note_absence()
        self._on_change()

    def _note_absence(self) -> None:
        session = self._session
        is_leaving = session.has_handed_over or session.state is EngineState.RECOVERING
        if session.num_losses > self._num_losses or is_leaving:
            # An engine that is lost again before it was ready has been gone since the first time.
            if self.gone_since_s is None:
                self.gone_since_s = asyncio.get_running_loop().time()
        elif session.state is EngineState.READY and self.served is not None:
            self.gone_since_s = None
        self._num_losses = session.num_losses

    def open(self, requests: Sequence[AddRequest], wake: Callable[[], None]) -> list[OpenSequence]:
        """Send new sequences of one request; see EngineClient.open()."""
        return self.client.open(requests, wake)

    def adopt(self, sequences: Sequence[OpenSequence], requests: Sequence[AddRequest]) -> None:
        """Continue displaced sequences of one request; see EngineClient.adopt()."""
        self.client.adopt(sequences, requests)

    def abort(self, sequences: Iterable[OpenSequence]) -> None:
        """Abort those of the sequences that are still open."""
        self.client.abort(sequences)

    def displaced(
        self, sequences: Sequence[OpenSequence], cause: DisplacedBy, error: SplitServeError
    ) -> None:
        """Give sequences that the engine no longer runs back to their owner."""
        self._failover.displaced(self, sequences, cause, error)

    def returned(self, *, same_life: bool) -> None:
        """Tell the owner that the engine is ready again."""
        self._failover.returned(self, same_life=same_life)

    def start(self) -> None:
        """Connect; returns at once.

        Raises:
            ConfigError: the address or the keys are not usable.
        """
        self.client.start()

    def status(self) -> EngineStatus:
        """Return what is known of the engine."""
        session, loading = self._session, self._session.loading
        age_s = (
            None if session.last_pong_s is None else asyncio.get_running_loop().time() - session.last_pong_s
        )
        is_loading = self.state in STARTING
        return EngineStatus(
            address=session.address,
            state=self.state,
            engine_id=session.ready.engine_id
            if session.ready
            else loading.engine_id
            if isinstance(loading, Loading)
            else "",
            stage="tokenizer" if self._lacks_assets else loading.stage if is_loading and loading else "",
            fraction=loading.fraction if is_loading and loading else 0.0,
            message=self._assets_error or session.message,
            last_pong_age_s=age_s,
            num_open=self.num_open,
            epoch=self._epoch,
            model=self.served,
            stats=session.last_pong.stats if session.last_pong else None,
            queue=session.last_pong.queue if session.last_pong else None,
            stalled=session.last_pong.stalled if session.last_pong else "",
        )

    def count_into(self, stats: PoolStats) -> None:
        """Add the counters of its connection."""
        session = self._session
        stats.num_open += len(session.sequences)
        stats.engines_lost += session.num_losses
        stats.stale_outputs += session.sequences.stale_outputs
        stats.protocol_errors += self.client.protocol_errors

    async def answers(self, timeout_s: float) -> bool:
        """Return whether the busy loop replies to a ping in time."""
        try:
            await self.client.ping(timeout_s)
        except EngineUnavailableError:
            return False
        return True

    async def ask(
        self, kind: CallKind, timeout_s: float, request_ids: Sequence[str] = (), tenant: str = ""
    ) -> CallResult | None:
        """Make a utility call, see EngineClient.call; None if there is no reply in time."""
        try:
            return await self.client.call(Call(0, kind, list(request_ids), tenant), timeout_s)
        except EngineUnavailableError:
            return None

    async def close(self) -> None:
        """Abort the open sequences and disconnect."""
        if self._loader is not None:
            self._loader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loader
        await self.client.close()

    @property
    def _lacks_assets(self) -> bool:
        return self._session.state is EngineState.READY and self.served is None

    @property
    def _epoch(self) -> int:
        return self._session.ready.epoch if self._session.ready else 0

    def _log_unusable(self, error: Exception | None = None, detail: str | None = None) -> None:
        engine = self._session.address
        log_event(logger, logging.ERROR, "engine cannot be used", error, engine=engine, detail=detail)

    async def _load(self, ready: Ready) -> None:
        try:
            assets, created = await self._assets.get(ready.model)
        except (ModelLoadError, ConfigError) as error:
            self._assets_error = str(error)
            self._log_unusable(detail=str(error))
        except Exception as error:
            # A bug of ours triggered by one model's files must not leave its engine loading for ever.
            self._assets_error = f"{type(error).__name__} while loading the tokenizer"
            self._log_unusable(error)
        else:
            self._model = ServedModel.of(ready, assets, created)
        self._note_absence()
        self._on_change()
