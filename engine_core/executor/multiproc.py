"""Runs the model in worker processes, one per rank: starts them by command line, watches them, carries steps.

state      event                                  next
starting   WorkerHello, LoadProgress              starting
starting   WorkerReady of all ranks               loaded
loaded     init_kv_cache(), KVCacheReady of all   serving
serving    submit(), ModelRunnerOutput            serving
any        process ended, WorkerFailed, garbage,  lost: receive() raises WorkerError, or ModelLoadError
           step deadline passed                   when a worker refused the checkpoint
any        shutdown()                             closed
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Sequence

import zmq

from engine_core.clock import Clock
from engine_core.config import EngineConfig
from engine_core.errors import (
    ConfigError,
    ModelLoadError,
    ProtocolError,
    RankLostError,
    SplitServeError,
    WorkerError,
)
from engine_core.executor.base import Executor
from engine_core.executor.ranks import Ranks
from engine_core.executor.worker_process import Place, WorkerArgv, WorkerProcess, worker_argv
from engine_core.ipc.codec import encode, from_worker_decoder
from engine_core.ipc.transport import BoundRouter, SendResult
from engine_core.ipc.worker_messages import (
    FromWorkerMessage,
    InitKVCache,
    SchedulerOutput,
    Shutdown,
    ToWorkerMessage,
    WorkerFailed,
)
from engine_core.process import describe_exit

_MAX_MESSAGES_PER_CALL = 64
# Between the loss of the pipe or socket and the exit code being known.
_EXIT_GRACE_S = 2
# libzmq's thread may need a moment to hand over what a worker sent just before its end.
_LAST_WORDS_MS = 100


class MultiprocExecutor(Executor):
    """Worker processes on this machine, one per rank; see the base class for who may call what.

    Args:
        config: the engine's configuration.
        clock: for step deadlines.
        argv: builds a worker's command line.
    """

    def __init__(self, config: EngineConfig, clock: Clock, argv: WorkerArgv = worker_argv) -> None:
        self._config = config
        self._clock = clock
        self._argv = argv
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._directory = ""
        self._router: BoundRouter | None = None
        # By rank.
        self._workers: list[WorkerProcess] = []
        self._ranks = Ranks(config.num_ranks, 0, config.step_timeout_s, clock)
        # Why workers end, as far as they have said it.
        self._last_words: dict[int, WorkerFailed] = {}

    @property
    def sockets(self) -> Sequence[zmq.Socket | int]:
        """The workers' socket, their output pipes and their pidfds."""
        if self._router is None:
            return ()
        return (self._router.socket, *(fd for worker in self._workers for fd in worker.descriptors))

    def poll_timeout_s(self) -> float | None:
        """Seconds until the oldest step misses its deadline."""
        deadline_s = self._ranks.deadline_s()
        if deadline_s is not None:
            return max(0.0, deadline_s - self._clock.monotonic())
        # Without pidfd (other systems than Linux) a lost worker is found by asking now and then.
        return 0.5 if any(worker.needs_asking for worker in self._workers) else None

    def start(self) -> None:
        """Bind a private socket and start the workers.

        Raises:
            WorkerError: a process cannot be started.
        """
        self._directory = tempfile.mkdtemp(prefix="splitserve-worker-")
        address = f"ipc://{self._directory}/worker.sock"
        self._router = BoundRouter(self._context, address)
        rendezvous = f"file://{self._directory}/rendezvous" if self._config.num_ranks > 1 else ""
        for rank in range(self._config.num_ranks):
            argv = self._argv(self._config, Place(rank, address, rendezvous))
            self._workers.append(WorkerProcess(rank, argv))

    def init_kv_cache(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Tell the workers the size of their KV cache and of its host tier."""
        self._send(InitKVCache(num_blocks, num_host_blocks))

    def submit(self, output: SchedulerOutput) -> None:
        """Start one step."""
        assert self._ranks.num_in_flight < 2, "a third step in flight"
        self._ranks.submit(output.step)
        self._send(output)

    def receive(self) -> list[FromWorkerMessage]:
        """Return what the workers sent, as one.

        Raises:
            WorkerError: a worker was lost, sent garbage or missed its step deadline.
            ModelLoadError: a worker refused the checkpoint.
            ConfigError: a worker refused the configuration.
        """
        assert self._router is not None, "start() comes first"
        frames = list(self._router.receive(_MAX_MESSAGES_PER_CALL))
        messages = [message for frame in frames if (message := self._take(*frame)) is not None]
        for worker in self._workers:
            worker.pass_on_output()
        if self._last_words:
            raise self._cause(*next(iter(self._last_words.items())))
        if not frames:
            self._check_alive()
        return messages

    def shutdown(self, timeout_s: float) -> None:
        """Ask the workers to end; terminate, then kill those that do not."""
        self._end_workers(timeout_s)
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        if self._router is not None:
            self._router.close()
            self._router = None
        self._remove_directory()
        self._context.term()

    def _send(self, message: ToWorkerMessage) -> None:
        """Send to every rank; encoded once."""
        assert self._router is not None, "start() comes first"
        frame = encode(message)
        for rank, worker in enumerate(self._workers):
            result = self._router.send(worker.identity, frame)
            if result is not SendResult.SENT:
                raise self._loss(rank, f"it does not take messages ({result.name.lower()})")

    def _take(self, identity: bytes, frame: bytes | ProtocolError) -> FromWorkerMessage | None:
        rank = self._rank_of(identity)
        try:
            if isinstance(frame, ProtocolError):
                raise frame
            message = from_worker_decoder.decode(frame)
        except ProtocolError as error:
            raise WorkerError(f"{self._ranks.name(rank)} sent an invalid message: {error}") from None
        if isinstance(message, WorkerFailed):
            self._last_words[rank] = message
            return None
        heard = self._ranks.take(rank, message)
        if self._ranks.have_met:
            # They have met and never reconnect: from here on a crash leaves no file behind.
            self._remove_directory()
        return heard

    def _rank_of(self, identity: bytes) -> int:
        for rank, worker in enumerate(self._workers):
            if worker.identity == identity:
                return rank
        raise WorkerError(f"a stranger calls itself worker {identity[:20]!r}")

    def _check_alive(self) -> None:
        for rank, worker in enumerate(self._workers):
            if worker.exit_code() is not None:
                raise self._loss(rank, "")
        self._ranks.check_deadlines()

    def _loss(self, rank: int, reason: str) -> SplitServeError:
        """Name the cause of a worker's end as well as it can be known."""
        worker = self._workers[rank]
        code = worker.exit_code(_EXIT_GRACE_S)
        # What it sent and printed before it ended tells more than its exit code.
        self._hear_last_words()
        if rank in self._last_words:
            return self._cause(rank, self._last_words[rank])
        how = reason or "it ended" if code is None else describe_exit(code)
        when = "" if self._ranks.are_serving else " while starting"
        tail = worker.last_lines()
        return WorkerError(
            f"{self._ranks.name(rank)} was lost{when}: {how}" + (f"; its last lines:\n{tail}" if tail else "")
        )

    def _cause(self, rank: int, failed: WorkerFailed) -> SplitServeError:
        """Return what ended a rank: its own words, or the loss of the rank it waited for."""
        if failed.code != RankLostError.code:
            return _failure(self._ranks.name(rank), failed)
        # Others may tell the same, and the one that is lost may be about to end, or to say why it does.
        for _ in range(_EXIT_GRACE_S * 1000 // _LAST_WORDS_MS):
            ended = [rank for rank, worker in enumerate(self._workers) if worker.exit_code() is not None]
            self._hear_last_words()
            for other, words in self._last_words.items():
                if words.code != RankLostError.code:
                    return _failure(self._ranks.name(other), words)
            for other in ended:
                if other not in self._last_words:
                    return self._loss(other, "")
        ranks = range(len(self._workers))
        silent = [self._ranks.name(other) for other in ranks if other not in self._last_words]
        who = f"{' and '.join(silent)} did not take part" if silent else "the ranks lost each other"
        return WorkerError(f"{who}: {failed.message}")

    def _hear_last_words(self) -> None:
        """Keep why workers end, as far as they have said so by now, or say so in a moment."""
        assert self._router is not None
        while self._router.socket.poll(_LAST_WORDS_MS):
            for identity, frame in self._router.receive(_MAX_MESSAGES_PER_CALL):
                with contextlib.suppress(ProtocolError):
                    message = from_worker_decoder.decode(frame) if isinstance(frame, bytes) else None
                    if isinstance(message, WorkerFailed):
                        self._last_words[self._rank_of(identity)] = message

    def _end_workers(self, timeout_s: float) -> None:
        if timeout_s > 0 and self._router is not None:
            for worker in self._workers:
                self._router.send(worker.identity, encode(Shutdown()))
            for worker in self._workers:
                worker.wait(timeout_s)
        for number, wait_s in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 10.0)):
            for worker in self._workers:
                worker.end(number)
            for worker in self._workers:
                worker.wait(wait_s)

    def _remove_directory(self) -> None:
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = ""


def _failure(name: str, failed: WorkerFailed) -> SplitServeError:
    for kind in (ModelLoadError, ConfigError):
        if failed.code == kind.code:
            return kind(failed.message)
    return WorkerError(f"{name} failed ({failed.code}): {failed.message}")
