"""Several engine-cores as one: which are there, which one takes a request, and the request's life on it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from engine_core.ipc.messages import CallKind, EngineStats, ModelInfo
from frontend.generation import GenerationRequest, OutputDelta
from frontend.model_assets import ModelAssets


@dataclass(slots=True, frozen=True)
class ServedModel:
    """A model that at least one ready engine serves.

    Attributes:
        names: what clients may call it; the first is the main one.
        max_logprobs: largest number of top logprobs the engine gives.
        max_num_seqs: requests one engine runs at a time.
        epoch: life of the engine this was learnt from.
        created: Unix time at which this process first saw the model.
    """

    names: tuple[str, ...]
    info: ModelInfo
    assets: ModelAssets
    epoch: int
    max_num_seqs: int
    max_logprobs: int
    created: int


@dataclass(slots=True, frozen=True)
class EngineStatus:
    """What this frontend knows of one engine.

    Attributes:
        state: "connecting", "loading", "ready", "draining", "lost" or "refused".
        stage, fraction: progress while loading, fraction 0..1.
        message: why it was refused or lost, "" otherwise.
        last_pong_age_s: seconds since the busy loop last answered; None before its first answer.
        num_open: requests of this frontend that are open on it.
        stats: of its last Pong; None before the first.
    """

    address: str
    state: str
    engine_id: str = ""
    stage: str = ""
    fraction: float = 0.0
    message: str = ""
    last_pong_age_s: float | None = None
    num_open: int = 0
    epoch: int = 0
    model: ServedModel | None = None
    stats: EngineStats | None = None


@dataclass(slots=True, frozen=True)
class CallOutcome:
    """The answer of one engine to a utility call; message says why when not ok."""

    address: str
    ok: bool
    message: str = ""


@dataclass(slots=True, frozen=True)
class PoolStats:
    """Counters of this process since start, for /metrics; per engine figures are in status()."""

    num_open: int = 0
    requests_started: int = 0
    requests_finished: int = 0
    requests_aborted: int = 0
    requests_failed: int = 0
    engines_lost: int = 0
    stale_outputs: int = 0
    protocol_errors: int = 0


class EnginePool:
    """The engines of one frontend process; all methods belong to the event loop that called start()."""

    def __init__(
        self, addresses: Sequence[str], frontend_id: str, *, curve_dir: str = "", assets_dir: str = ""
    ) -> None:
        """Prepare; nothing connects before start().

        Args:
            addresses: ZMQ addresses of engine-cores, ipc://PATH or tcp://HOST:PORT.
            frontend_id: unique per frontend process; names it in the engines' logs and leases.
            curve_dir: folder with this frontend's key pair and the engines' public keys; "" for none.
            assets_dir: where tokenizer and templates lie if not at the path the engine names; "" takes that path.
        """
        raise NotImplementedError

    async def start(self) -> None:
        """Connect to all engines; returns at once, they become ready in their own time."""

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until one engine is ready.

        Raises:
            EngineUnavailableError: none was in time, or all refuse; the message tells each one's state.
        """

    async def close(self) -> None:
        """Abort what is open on the engines, and close the sockets; safe to call twice."""

    def models(self) -> list[ServedModel]:
        """Return the models of ready or draining engines, each once, in order of address."""
        raise NotImplementedError

    def find_model(self, name: str) -> ServedModel:
        """Return a served model by any of its names; "" is the first one.

        Raises:
            InvalidRequestError: status 404, code "model_not_found": no engine serves that name.
            EngineUnavailableError: no engine is ready at all.
        """
        raise NotImplementedError

    def generate(self, model: str, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        """Run one request and yield its deltas until each of its n sequences has a finish_reason.

        Closing the generator (aclose, or cancelling the task that iterates) aborts what is still open on the
        engine at once. When the caller reads slowly, deltas join: at most max_tokens tokens per sequence are held.

        Raises:
            InvalidRequestError: a field is wrong (also found by the engine: param, code and status are kept).
            ContextLengthError: prompt and max_tokens do not fit the context.
            OverloadedError: the engine's queue is full; has retry_after_s.
            EngineUnavailableError: no engine is ready, or the engine died meanwhile.
            EngineRequestError: the engine ended this request because of a fault of its own.
        """
        raise NotImplementedError

    def status(self) -> list[EngineStatus]:
        """Return the state of each engine, in order of address."""
        raise NotImplementedError

    async def ping(self, timeout_s: float) -> list[EngineStatus]:
        """Send each ready engine a ping through its busy loop and wait for all answers.

        Returns:
            The status of the engines that answered, at least one.

        Raises:
            EngineUnavailableError: no engine is ready, or none answered in time.
        """
        raise NotImplementedError

    def stats(self) -> PoolStats:
        """Return the counters of this process."""
        raise NotImplementedError

    async def call(self, kind: CallKind, timeout_s: float = 10.0) -> list[CallOutcome]:
        """Make a utility call on every ready engine; one that does not answer in time is not ok.

        Raises:
            EngineUnavailableError: no engine is ready.
        """
        raise NotImplementedError
