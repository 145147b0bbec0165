"""The engine's end of the worker link, and worker processes started for real."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import zmq

from splitserve.engine_core.ipc.codec import encode, from_worker_decoder
from splitserve.engine_core.ipc.worker_messages import (
    Configure,
    FromWorkerMessage,
    InitKVCache,
    LoadProgress,
    ToWorkerMessage,
    WorkerHello,
)
from splitserve.engine_core.settings.worker_settings import WorkerSettings

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 60.0
M = TypeVar("M")


class FakeEngine:
    """A ROUTER that workers connect to, with a deadline on everything it waits for."""

    def __init__(self, folder: Path) -> None:
        self.address = f"ipc://{folder}/worker.sock"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.RCVTIMEO, int(DEADLINE_S * 1000))
        self._router.bind(self.address)
        self.identity = b""

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._router.close()
        self._context.term()

    def receive(self) -> FromWorkerMessage:
        self.identity, frame = self._router.recv_multipart()
        return from_worker_decoder.decode(frame)

    def expect(self, kind: type[M]) -> M:
        """The next message, which has to be of this kind."""
        message = self.receive()
        assert isinstance(message, kind), message
        return message

    def expect_after_progress(self, kind: type[M]) -> tuple[M, list[LoadProgress]]:
        """The next message that is no LoadProgress, and the progress before it."""
        progress = []
        while isinstance(message := self.receive(), LoadProgress):
            progress.append(message)
        assert isinstance(message, kind), message
        return message, progress

    def send(self, message: ToWorkerMessage) -> None:
        self.send_frame(encode(message))

    def send_frame(self, frame: bytes) -> None:
        self._router.send_multipart([self.identity, frame])

    def configure(self, settings: WorkerSettings) -> WorkerHello:
        """Hear the worker's hello and tell it how to compute."""
        hello = self.expect(WorkerHello)
        self.send(Configure(settings))
        return hello

    def init_kv_cache(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        self.send(InitKVCache(num_blocks, num_host_blocks))


def worker_argv(address: str) -> list[str]:
    return [sys.executable, "-m", "splitserve.worker.cli", "--connect", address, "--rank", "0"]


def settings_of(model: Path) -> WorkerSettings:
    """What workers of these tests are told."""
    return WorkerSettings(model=str(model), num_threads=1, max_num_seqs=4, block_size=4)


@contextmanager
def worker_process(address: str) -> Iterator[subprocess.Popen[str]]:
    """A worker as a child of this process; killed at the end if it still runs."""
    argv = worker_argv(address)
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_end(pid: int) -> bool:
    """Whether a process that is no child of ours ended before the deadline."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        ready, _, _ = select.select([descriptor], [], [], DEADLINE_S)
        return bool(ready)
    finally:
        os.close(descriptor)
