"""Runs the model in a worker process: starts it by command line, watches it, carries steps there and back.

state      event                                  next
starting   WorkerHello, LoadProgress              starting
starting   WorkerReady                            loaded
loaded     init_kv_cache(), KVCacheReady          serving
serving    submit(), ModelRunnerOutput            serving
any        process ended, WorkerFailed, garbage,  lost: receive() raises WorkerError, or ModelLoadError
           step deadline passed                   when the worker refused the checkpoint
any        shutdown()                             closed
"""

from __future__ import annotations

import contextlib
import math
import shutil
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from engine_core.clock import Clock
from engine_core.config import EngineConfig
from engine_core.errors import ConfigError, ModelLoadError, ProtocolError, SplitServeError, WorkerError
from engine_core.executor.base import Executor
from engine_core.executor.worker_output import WorkerOutput
from engine_core.ipc.codec import encode, from_worker_decoder
from engine_core.ipc.transport import BoundRouter, SendResult
from engine_core.ipc.wire import PROTOCOL_VERSION
from engine_core.ipc.worker_messages import (
    FromWorkerMessage,
    InitKVCache,
    KVCacheReady,
    LoadProgress,
    ModelRunnerOutput,
    SchedulerOutput,
    Shutdown,
    ToWorkerMessage,
    WorkerFailed,
    WorkerHello,
    WorkerReady,
)
from engine_core.process import Child, describe_exit

_RANK = b"0"
_MAX_MESSAGES_PER_CALL = 64
# Between the loss of the pipe or socket and the exit code being known.
_EXIT_GRACE_S = 2.0
# libzmq's thread may need a moment to hand over what a worker sent just before its end.
_LAST_WORDS_MS = 100
_WAIT_SLICE_S = 0.05

WorkerArgv = Callable[[EngineConfig, str], list[str]]


def worker_argv(config: EngineConfig, address: str) -> list[str]:
    """Return the command line of the worker of rank 0."""
    options = {
        "--connect": address,
        "--rank": "0",
        "--model": config.model,
        "--dtype": config.dtype,
        "--quantization": config.quantization,
        "--block-size": str(config.block_size),
        "--max-num-seqs": str(config.max_num_seqs),
        "--max-num-batched-tokens": str(config.max_num_batched_tokens),
        "--max-model-len": str(config.max_model_len),
        "--num-threads": str(config.num_threads),
        "--kv-cache-memory-bytes": str(config.kv_cache_memory_bytes),
        "--device": config.device,
        "--attention-backend": config.attention_backend,
        "--gpu-memory-utilization": str(config.gpu_memory_utilization),
        "--log-level": config.log_level,
    }
    switches = ["--enforce-eager"] if config.enforce_eager else []
    return [
        sys.executable,
        "-m",
        "worker.cli",
        *(word for option in options.items() for word in option),
        *switches,
    ]


class MultiprocExecutor(Executor):
    """One worker process on this machine; see the base class for who may call what.

    Args:
        config: the engine's configuration.
        clock: for step deadlines.
        argv: builds the worker's command line from the configuration and the address to connect to.
    """

    def __init__(self, config: EngineConfig, clock: Clock, argv: WorkerArgv = worker_argv) -> None:
        self._config = config
        self._clock = clock
        self._argv = argv
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._directory = ""
        self._router: BoundRouter | None = None
        self._child: Child | None = None
        self._output = WorkerOutput()
        # Step number and deadline of every step that runs, oldest first; at most two.
        self._in_flight: deque[tuple[int, float]] = deque()
        self._serving = False

    @property
    def sockets(self) -> Sequence[zmq.Socket | int]:
        """The worker's socket, its output pipe and its pidfd."""
        if self._router is None or self._child is None:
            return ()
        descriptors = [fd for fd in (self._child.pidfd, self._child.output_fd) if fd >= 0]
        return (self._router.socket, *descriptors)

    def poll_timeout_s(self) -> float | None:
        """Seconds until the oldest step misses its deadline."""
        # Without pidfd (other systems than Linux) a lost worker is found by asking now and then.
        idle = 0.5 if self._child is not None and self._child.pidfd < 0 else None
        if not self._in_flight:
            return idle
        return max(0.0, self._in_flight[0][1] - self._clock.monotonic())

    def start(self) -> None:
        """Bind a private socket and start the worker.

        Raises:
            WorkerError: the process cannot be started.
        """
        self._directory = tempfile.mkdtemp(prefix="splitserve-worker-")
        address = f"ipc://{self._directory}/worker.sock"
        self._router = BoundRouter(self._context, address)
        try:
            # SIGKILL: whatever the worker is doing, it must not hold memory or a device without its engine.
            self._child = Child(
                self._argv(self._config, address), death_signal=signal.SIGKILL, capture_output=True
            )
        except OSError as error:
            raise WorkerError(f"cannot start the worker: {error}") from None

    def init_kv_cache(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Tell the worker the size of its KV cache and of its host tier."""
        self._send(InitKVCache(num_blocks, num_host_blocks))

    def submit(self, output: SchedulerOutput) -> None:
        """Start one step."""
        assert len(self._in_flight) < 2, "a third step in flight"
        self._in_flight.append((output.step, self._new_deadline_s()))
        self._send(output)

    def receive(self) -> list[FromWorkerMessage]:
        """Return what the worker sent.

        Raises:
            WorkerError: the worker was lost, sent garbage or missed its step deadline.
            ModelLoadError: the worker refused the checkpoint.
            ConfigError: the worker refused the configuration.
        """
        router, child = self._running()
        messages = [self._decode(frame) for _, frame in router.receive(_MAX_MESSAGES_PER_CALL)]
        self._output.feed(child.read_output())
        if not messages:
            self._check_alive(child)
        return messages

    def shutdown(self, timeout_s: float) -> None:
        """Ask the worker to end; terminate, then kill it when it does not."""
        if self._child is not None:
            self._end_child(self._child, timeout_s)
            self._child.close()
            self._child = None
        if self._router is not None:
            self._router.close()
            self._router = None
        self._remove_directory()
        self._context.term()

    def _running(self) -> tuple[BoundRouter, Child]:
        assert self._router is not None, "start() comes first"
        assert self._child is not None, "start() comes first"
        return self._router, self._child

    def _send(self, message: ToWorkerMessage) -> None:
        result = self._running()[0].send(_RANK, encode(message))
        if result is not SendResult.SENT:
            raise self._loss(f"it does not take messages ({result.name.lower()})")

    def _decode(self, frame: bytes | ProtocolError) -> FromWorkerMessage:
        try:
            if isinstance(frame, ProtocolError):
                raise frame
            message = from_worker_decoder.decode(frame)
        except ProtocolError as error:
            raise WorkerError(f"the worker sent an invalid message: {error}") from None
        return self._accept(message)

    def _accept(self, message: FromWorkerMessage) -> FromWorkerMessage:
        match message:
            case WorkerHello(protocol_version=version):
                if version != PROTOCOL_VERSION:
                    raise WorkerError(f"the worker speaks protocol {version}, this engine {PROTOCOL_VERSION}")
                # The worker is connected and never reconnects: from here on a crash leaves no file behind.
                self._remove_directory()
            case WorkerFailed(code=code, message=text):
                raise _failure(code, text)
            case ModelRunnerOutput(step=step):
                self._end_step(step)
            case KVCacheReady():
                self._serving = True
            case LoadProgress() | WorkerReady():
                pass
        return message

    def _end_step(self, step: int) -> None:
        expected = self._in_flight.popleft()[0] if self._in_flight else None
        if step != expected:
            raise WorkerError(f"the worker answered step {step}, expected {expected}")
        if self._in_flight:
            # The next step begins only now.
            self._in_flight[0] = (self._in_flight[0][0], self._new_deadline_s())

    def _new_deadline_s(self) -> float:
        return self._clock.monotonic() + self._config.step_timeout_s

    def _check_alive(self, child: Child) -> None:
        if child.poll() is not None:
            raise self._loss("")
        if self._in_flight and self._clock.monotonic() >= self._in_flight[0][1]:
            raise WorkerError(
                f"the worker did not finish step {self._in_flight[0][0]} "
                f"within {self._config.step_timeout_s:g} s"
            )

    def _loss(self, reason: str) -> SplitServeError:
        """Name the cause of the worker's end as well as it can be known."""
        router, child = self._running()
        code = child.wait(_EXIT_GRACE_S)
        # What it sent and printed before it ended tells more than its exit code.
        failed = self._last_words(router)
        if failed is not None:
            return _failure(failed.code, failed.message)
        self._read_all_output(child)
        how = reason or "it ended" if code is None else describe_exit(code)
        when = "" if self._serving else " while starting"
        tail = self._output.tail()
        return WorkerError(
            f"the worker was lost{when}: {how}" + (f"; its last lines:\n{tail}" if tail else "")
        )

    def _last_words(self, router: BoundRouter) -> WorkerFailed | None:
        while router.socket.poll(_LAST_WORDS_MS):
            for _, frame in router.receive(_MAX_MESSAGES_PER_CALL):
                with contextlib.suppress(ProtocolError):
                    message = from_worker_decoder.decode(frame) if isinstance(frame, bytes) else None
                    if isinstance(message, WorkerFailed):
                        return message
        return None

    def _end_child(self, child: Child, timeout_s: float) -> None:
        if child.poll() is None and timeout_s > 0:
            self._running()[0].send(_RANK, encode(Shutdown()))
            self._wait_for_end(child, timeout_s)
        for number, wait_s in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 10.0)):
            if child.poll() is None:
                child.signal(number)
                self._wait_for_end(child, wait_s)
        self._read_all_output(child)

    def _wait_for_end(self, child: Child, timeout_s: float) -> None:
        """Wait, and read meanwhile what it prints: a full pipe would keep it from ending."""
        for _ in range(math.ceil(timeout_s / _WAIT_SLICE_S)):
            if child.wait(_WAIT_SLICE_S) is not None:
                return
            self._read_all_output(child)

    def _read_all_output(self, child: Child) -> None:
        while data := child.read_output():
            self._output.feed(data)

    def _remove_directory(self) -> None:
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = ""


def _failure(code: str, text: str) -> SplitServeError:
    for kind in (ModelLoadError, ConfigError):
        if code == kind.code:
            return kind(text)
    return WorkerError(f"the worker failed ({code}): {text}")
