"""How far is the engine, and what are frontends told of it?

phase        a Hello is answered with   AddRequest      left by
LOADING      Loading                    Rejected 503    serve() -> SERVING, Ready is posted
SERVING      Ready                      engine.add      drain() -> DRAINING, Draining is posted
DRAINING     Ready, Draining            Rejected 503    end of the process

Beside SERVING and DRAINING, while lost workers are started again, or the engine is asleep without any:
recovering   also Recovering            Rejected 503    recovered(), all of the above is posted again
"""

from __future__ import annotations

import enum

import msgspec

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.errors import EngineAsleepError, EngineUnavailableError
from splitserve.engine_core.ipc.messages import (
    AdaptersChanged,
    Draining,
    EngineMessage,
    Loading,
    Ready,
    Recovering,
)
from splitserve.engine_core.ipc.wire import ASLEEP, PROTOCOL_VERSION, ModelInfo
from splitserve.engine_core.process.version import software_version
from splitserve.engine_core.sequence_sampling import MAX_STEP_LOGPROBS
from splitserve.engine_core.server.startup import Startup


class Phase(enum.Enum):
    """See the table above."""

    LOADING = 0
    SERVING = 1
    DRAINING = 2


class EnginePhase:
    """Phase of the engine and the messages that tell of it; owned by the busy loop's thread.

    Attributes:
        current: see the table above.
        is_recovering: whether lost workers are being started again.

    Args:
        epoch: identifies this run of the engine process.
        startup: asked for stage and fraction while workers start.
    """

    def __init__(self, config: EngineConfig, clock: Clock, epoch: int, startup: Startup) -> None:
        self._config = config
        self._clock = clock
        self._epoch = epoch
        self._startup = startup
        self._engine: EngineCore | None = None
        self._ready: Ready | None = None
        self._drain_end_s = 0.0
        self.current = Phase.LOADING
        self.is_recovering = False

    @property
    def is_starting(self) -> bool:
        """Whether workers are being started, for the first time or again."""
        return self.current is Phase.LOADING or self.is_recovering

    @property
    def is_accepting(self) -> bool:
        """Whether the engine takes new requests."""
        return self.current is Phase.SERVING and not self.is_recovering

    @property
    def is_draining(self) -> bool:
        """Whether the engine is about to end."""
        return self.current is Phase.DRAINING

    def serve(self, engine: EngineCore, model: ModelInfo) -> None:
        """The first workers are ready."""
        config = self._config
        self._engine = engine
        self._ready = Ready(
            protocol_version=PROTOCOL_VERSION,
            software_version=software_version(),
            engine_id=config.engine_id,
            epoch=self._epoch,
            model=msgspec.structs.replace(model, max_model_len=engine.max_num_tokens),
            served_model_names=config.served_model_names or [config.model],
            max_num_seqs=config.max_num_seqs,
            max_logprobs=MAX_STEP_LOGPROBS,
            lease_s=config.lease_s,
            max_num_waiting=config.max_num_waiting,
        )
        self.current = Phase.SERVING

    def drain(self, timeout_s: float) -> None:
        """Accept no new requests from now on."""
        self.current = Phase.DRAINING
        self._drain_end_s = self._clock.monotonic() + timeout_s

    def accepting_engine(self) -> EngineCore:
        """Return the engine.

        Raises:
            EngineUnavailableError: it takes no new requests.
        """
        if self._engine is None:
            raise EngineUnavailableError(f"the engine is {self._startup.stage}")
        if self.is_draining:
            raise EngineUnavailableError("the engine is shutting down")
        if self.is_recovering and self._startup.stage == ASLEEP:
            raise EngineAsleepError("the engine is asleep")
        if self.is_recovering:
            raise EngineUnavailableError(f"the engine has lost its workers and is {self._startup.stage}")
        return self._engine

    def messages(self, *, lease_renewed: bool = False) -> list[EngineMessage]:
        """Return what tells a frontend where the engine stands.

        Args:
            lease_renewed: whether the frontend's requests still exist.
        """
        if self._ready is None:
            return [self.progress()]
        told: list[EngineMessage] = [msgspec.structs.replace(self._ready, lease_renewed=lease_renewed)]
        if self._engine is not None and self._engine.adapters.are_served:
            told.append(AdaptersChanged(self._epoch, self._engine.adapters.listed()))
        if self.is_draining:
            told.append(Draining(timeout_s=max(0.0, self._drain_end_s - self._clock.monotonic())))
        if self.is_recovering:
            told.append(self.progress())
        return told

    def progress(self) -> Loading | Recovering:
        """Return the message that tells how far the workers' start is."""
        stage, fraction = self._startup.stage, self._startup.fraction
        if self.is_recovering:
            return Recovering(stage=stage, fraction=fraction)
        return Loading(engine_id=self._config.engine_id, stage=stage, fraction=fraction)
