"""How does the model run in worker processes, one per rank, and what is reported when one ends?

state      event                                  next
starting   WorkerHello: Configure is sent         starting
starting   LoadProgress                           starting
starting   WorkerReady of all ranks               loaded
loaded     init_kv_cache(), KVCacheReady of all   serving
serving    submit(), ModelRunnerOutput            serving
any        process ended, WorkerFailed, garbage,  lost: receive() raises WorkerError, or ModelLoadError
           step deadline passed                   when a worker refused the checkpoint
any        restart()                              ending: all are killed
ending     the last one has ended                 starting
ending     they do not end                        lost; restart() raises WorkerError
any        shutdown(), leave()                    closed
"""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.errors import (
    ProtocolError,
    WorkerError,
)
from splitserve.engine_core.executor.base import Executor
from splitserve.engine_core.executor.last_words import LastWords
from splitserve.engine_core.executor.losses import Losses
from splitserve.engine_core.executor.ranks import Ranks
from splitserve.engine_core.executor.replacement import Replacement
from splitserve.engine_core.executor.worker_group import WorkerGroup
from splitserve.engine_core.ipc.codec import encode, from_worker_decoder
from splitserve.engine_core.ipc.transport import Content, SendResult
from splitserve.engine_core.ipc.wire import LogLevelName
from splitserve.engine_core.ipc.worker_messages import (
    CompileGrammar,
    FromWorkerMessage,
    InitKVCache,
    LoadAdapter,
    MemoryReleased,
    ReleaseKVCache,
    SchedulerOutput,
    SetLogLevel,
    Shutdown,
    ToWorkerMessage,
    WorkerFailed,
    WorkerHello,
)
from splitserve.engine_core.kept.ledger import Ledger

_MAX_MESSAGES_PER_CALL = 64
# How often to look whether workers are alive where no descriptor tells.
_ASK_ALIVE_S = 0.5


class WorkersExecutor(Executor):
    """Worker processes, one per rank; see the base class for who may call what.

    Args:
        config: the engine's configuration.
        clock: for step deadlines.
        group: starts and watches the workers; not started yet.
    """

    def __init__(self, config: EngineConfig, clock: Clock, group: WorkerGroup) -> None:
        self._clock = clock
        self._group = group
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._config = config
        self._all_ranks = range(config.num_ranks)
        self._identities = [str(rank).encode() for rank in self._all_ranks]
        self._replacement = Replacement(group, clock, self.start)
        self._next_ask_s = 0.0
        self._forget()

    def _forget(self) -> None:
        """Know nothing of the workers: none has been started, or others are."""
        config, where = self._config, self._group.where
        self._ranks = Ranks(config.num_ranks, config.output_rank, config.step_timeout_s, self._clock, where)
        self._last_words = LastWords(self._rank_of)
        self._losses = Losses(
            self._group, self._ranks, self._last_words, config.num_ranks, lambda: self.before_waiting()
        )

    @property
    def sockets(self) -> Sequence[zmq.Socket | int]:
        """The workers' socket, once it is bound, and what tells of their processes."""
        if self._replacement.is_active:
            return ()
        router = self._group.router
        own = [router.socket, router.connections.monitor] if router is not None else []
        return (*own, *self._group.sources)

    def poll_timeout_s(self) -> float | None:
        """Seconds until the oldest step misses its deadline, or the workers have to be asked."""
        due_s = self._ranks.deadline_s()
        if self._replacement.is_active:
            due_s = self._replacement.due_s
        elif self._group.needs_asking:
            due_s = self._next_ask_s if due_s is None else min(due_s, self._next_ask_s)
        return None if due_s is None else max(0.0, due_s - self._clock.monotonic())

    def start(self) -> None:
        """Start the workers.

        Raises:
            WorkerError: a process cannot be started.
        """
        self._group.start(self._context)

    def stop(self) -> None:
        """Kill all workers, and start no others."""
        self._replacement.begin(wanted=False)
        self._forget()

    def restart(self) -> None:
        """Kill all workers; new ones are started once the last of them has ended.

        Raises:
            WorkerError: they were killed before, and have not ended.
        """
        if self._replacement.is_stopped:
            self._replacement.want()
            return
        self._replacement.begin(wanted=True)
        self._forget()

    def init_kv_cache(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Tell the workers the size of their KV cache and of its CPU offload tier."""
        self._ranks.expect_caches()
        self._send(InitKVCache(num_blocks, num_host_blocks))

    def release_kv_cache(self) -> None:
        """Tell the workers to free their KV cache, after the steps that they have been sent."""
        self._send(ReleaseKVCache())

    def submit(self, output: SchedulerOutput) -> None:
        """Start one step."""
        self._ranks.submit(output.step)
        self._send(output)

    def compile(self, message: CompileGrammar) -> None:
        """Send a grammar to the rank that samples."""
        self._send_to(self._config.output_rank, encode(message))

    def load_adapter(self, message: LoadAdapter) -> None:
        """Send an adapter's place to every rank."""
        self._send(message)

    def set_log_level(self, level: LogLevelName) -> None:
        """Tell every rank, once they serve; one that is gone is noticed later."""
        if self._ranks.are_serving and self._group.router is not None:
            for identity in self._identities:
                self._group.router.send(identity, encode(SetLogLevel(level)))

    def receive(self) -> list[FromWorkerMessage]:
        """Return what the workers sent, as one.

        Raises:
            WorkerError: a worker was lost, sent garbage or missed its step deadline.
            ModelLoadError: a worker refused the checkpoint.
            ConfigError: a worker refused the configuration.
        """
        if self._replacement.is_active:
            return [MemoryReleased()] if self._replacement.look() else []
        router = self._group.router
        frames = list(router.receive(_MAX_MESSAGES_PER_CALL)) if router is not None else []
        messages = [
            message for identity, frame, _ in frames if (message := self._take(identity, frame)) is not None
        ]
        self._group.attend()
        if self._last_words.of:
            raise self._losses.cause(*next(iter(self._last_words.of.items())))
        if not frames:
            if router is not None:
                router.look_after(self._clock.monotonic())
            self._check_alive()
            self._next_ask_s = self._clock.monotonic() + _ASK_ALIVE_S
        return messages

    def owing(self) -> str:
        """Name the ranks that owe the output of the oldest step."""
        return self._ranks.owing()

    def stopped(self) -> str:
        """Name the ranks whose process was stopped by a signal."""
        return " and ".join(
            self._ranks.name(rank) for rank in self._all_ranks if self._group.is_stopped(rank)
        )

    def discount(self, pause_s: float) -> None:
        """Move the step deadlines."""
        self._ranks.discount(pause_s)

    def leave(self) -> None:
        """Leave the workers to a successor, if they can wait for one."""
        if self._replacement.is_active:
            # There is none to be left.
            self._group.end(0.0)
        else:
            self._group.leave()
        # After a bug there may be sockets that nobody closed, for which term() would wait for ever.
        self._context.destroy(linger=0)

    def shutdown(self, timeout_s: float) -> None:
        """Ask the workers to end; terminate, then kill those that do not."""
        if timeout_s > 0 and self._group.router is not None:
            for identity in self._identities:
                self._group.router.send(identity, encode(Shutdown()))
        self._group.end(timeout_s)
        self._context.term()

    def ledger(self) -> Ledger | None:
        """Return the ledger of the workers' KV cache, if they may outlive this engine."""
        return self._group.ledger

    def _configure(self, rank: int) -> None:
        """Send a worker its configuration; one that is gone already is noticed by its last words."""
        assert self._group.router is not None, "it has said hello"
        self._group.router.send(self._identities[rank], encode(self._group.configure(rank)))

    def _send(self, message: ToWorkerMessage) -> None:
        """Send to every rank; encoded once."""
        frame = encode(message)
        for rank in self._all_ranks:
            self._send_to(rank, frame)

    def _send_to(self, rank: int, frame: bytes) -> None:
        assert self._group.router is not None, "only workers that are connected are sent to"
        result = self._group.router.send(self._identities[rank], frame)
        if result is not SendResult.SENT:
            raise self._losses.loss(rank, f"it does not accept messages ({result.name.lower()})")

    def _take(self, identity: bytes, frame: Content | ProtocolError) -> FromWorkerMessage | None:
        rank = self._rank_of(identity)
        self._last_words.note(rank, identity)
        try:
            if isinstance(frame, ProtocolError):
                raise frame
            message = from_worker_decoder.decode(frame)
        except ProtocolError as error:
            raise WorkerError(f"{self._ranks.name(rank)} sent an invalid message: {error}") from None
        if isinstance(message, WorkerFailed):
            self._last_words.of[rank] = message
            return None
        heard = self._ranks.take(rank, message)
        if isinstance(message, WorkerHello):
            self._configure(rank)
        if self._ranks.have_met:
            self._group.on_met()
        return heard

    def _rank_of(self, identity: bytes) -> int:
        if identity not in self._identities:
            raise WorkerError(f"an unknown peer claims to be worker {identity[:20]!r}")
        return self._identities.index(identity)

    def _check_alive(self) -> None:
        for rank in self._all_ranks:
            if self._group.how_it_ended(rank) is not None:
                raise self._losses.loss(rank, "")
        self._ranks.check_deadlines()
