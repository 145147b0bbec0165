"""A real engine-core process with the simulated executor, and raw clients that speak its wire."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
import zmq

from splitserve.engine_core.ipc.codec import encode, engine_decoder, pack_int32, unpack_int32, unpack_int64
from splitserve.engine_core.ipc.curve import ClientKeys
from splitserve.engine_core.ipc.messages import (
    AddRequest,
    EngineMessage,
    EngineStats,
    Finished,
    FrontendMessage,
    Hello,
    Ping,
    Pong,
    Ready,
    StepOutputs,
)
from splitserve.engine_core.ipc.transport import connect_engine
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.engine_core.executor.fake_worker import LOADED_ONCE
from tests.engine_core.processes import wait_ended

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 60.0
SIMULATED = ("splitserve.engine_core.cli", "--executor", "simulated")
FAKE_ENGINE = "tests.engine_core.server.fake_engine"
MODEL = {"vocab_size": 32000, "max_position_embeddings": 4096, "eos_token_id": 2}
KEPT = ("log", "tmp", "model", "config.json", LOADED_ONCE)

M = TypeVar("M")


@dataclass
class Sequence:
    """What came back for one request, checked as it comes."""

    token_ids: list[int] = field(default_factory=list)
    finished: Finished | None = None


class RawClient:
    """A frontend without a frontend: one DEALER, blocking, with deadlines.

    Attributes:
        heard: the kinds of messages that came so far.
    """

    def __init__(self, socket: zmq.Socket) -> None:
        self.socket = socket
        self.heard: set[type[EngineMessage]] = set()
        self.name = socket.getsockopt(zmq.ROUTING_ID).decode(errors="replace")
        self.sequences: dict[int, Sequence] = {}
        self._nonce = 0

    def send(self, message: FrontendMessage) -> None:
        self.send_frames(encode(message))

    def send_frames(self, *frames: bytes) -> None:
        assert self.socket.poll(int(DEADLINE_S * 1000), zmq.POLLOUT), "no connection"
        self.socket.send_multipart(frames)

    def receive(self, timeout_s: float = DEADLINE_S) -> EngineMessage:
        assert self.socket.poll(int(timeout_s * 1000)), f"{self.name}: nothing arrived within {timeout_s} s"
        message = engine_decoder.decode(self.socket.recv())
        self.heard.add(type(message))
        if isinstance(message, StepOutputs):
            self._take(message)
        return message

    def wait_for(self, kind: type[M], accept: Callable[[M], bool] = lambda message: True) -> M:
        """Take messages until one of this kind comes; outputs are collected on the way."""
        end_s = time.monotonic() + DEADLINE_S
        while True:
            message = self.receive(max(0.0, end_s - time.monotonic()))
            if isinstance(message, kind) and accept(message):
                return message

    def hello(self, version: int = PROTOCOL_VERSION) -> None:
        self.send(Hello(version, self.name, "test"))

    def join(self) -> Ready:
        self.hello()
        return self.wait_for(Ready)

    def add(self, handle: int, prompt: list[int], **params: Any) -> None:
        sampling = SequenceSampling(**{"seed": 7, "ignore_eos": True, **params})
        self.sequences[handle] = Sequence()
        self.send(AddRequest(handle, f"req-{handle}", pack_int32(prompt), sampling))

    def generate(self, handle: int, prompt: list[int], **params: Any) -> list[int]:
        self.add(handle, prompt, **params)
        return self.finish(handle).token_ids

    def finish(self, handle: int) -> Sequence:
        sequence = self.sequences[handle]
        while sequence.finished is None:
            self.wait_for(StepOutputs)
        return sequence

    def ping(self) -> Pong:
        self._nonce += 1
        nonce = self._nonce
        self.send(Ping(nonce))
        return self.wait_for(Pong, lambda pong: pong.nonce == nonce)

    def pong_when(self, accept: Callable[[Pong], bool]) -> Pong:
        """Ping until the answer is as expected."""
        end_s = time.monotonic() + DEADLINE_S
        while True:
            pong = self.ping()
            if accept(pong):
                return pong
            assert time.monotonic() < end_s, f"never came true: {pong}"

    def stats_when(self, accept: Callable[[EngineStats], bool]) -> EngineStats:
        """Ping until the engine's figures are as expected."""
        return self.pong_when(lambda pong: accept(pong.stats)).stats

    def close(self) -> None:
        self.socket.close(linger=0)

    def _take(self, outputs: StepOutputs) -> None:
        columns = (
            unpack_int64(outputs.handles),
            unpack_int32(outputs.token_ids),
            unpack_int32(outputs.token_indices),
        )
        for handle, token_id, index in zip(*(column.tolist() for column in columns), strict=True):
            if (sequence := self.sequences.get(handle)) is not None:
                assert index == len(sequence.token_ids), "a gap or a repeat"
                sequence.token_ids.append(token_id)
        for finished in outputs.finished:
            if finished.handle in self.sequences:
                assert self.sequences[finished.handle].finished is None, "ended twice"
                self.sequences[finished.handle].finished = finished


@dataclass
class Engine:
    """A started engine-core."""

    popen: subprocess.Popen[bytes]
    address: str
    log_path: Path
    context: zmq.Context
    clients: list[RawClient] = field(default_factory=list)

    def client(self, name: str = "", keys: ClientKeys | None = None) -> RawClient:
        """Connect without a word."""
        identity = name.encode() or b"raw-" + os.urandom(4)
        return self.client_on(connect_engine(self.context, self.address, identity, keys))

    def client_on(self, socket: zmq.Socket) -> RawClient:
        """Speak over a DEALER that is connected already, and close it in the end."""
        client = RawClient(socket)
        self.clients.append(client)
        return client

    def joined(self, name: str = "") -> RawClient:
        """Connect and say hello."""
        client = self.client(name)
        client.join()
        return client

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def worker(self) -> psutil.Process:
        """The process of its only worker."""
        (worker,) = psutil.Process(self.popen.pid).children()
        return worker

    def workers(self) -> list[psutil.Process]:
        """The processes of its workers, by rank."""
        return sorted(psutil.Process(self.popen.pid).children(), key=lambda worker: int(worker.cmdline()[-1]))

    @contextlib.contextmanager
    def steps_held(self) -> Iterator[list[psutil.Process]]:
        """No step ends meanwhile: the workers stand still, the engine does not."""
        workers = self.workers()
        for worker in workers:
            worker.suspend()
        try:
            yield workers
        finally:
            for worker in workers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.resume()

    def exit_code(self) -> int:
        return self.popen.wait(DEADLINE_S)


@contextlib.contextmanager
def running_engine(*flags: str, command: tuple[str, ...] = SIMULATED) -> Iterator[Engine]:
    """Start an engine-core in a folder of its own; afterwards nothing of it may be left.

    Args:
        flags: of engine-core, beside --listen.
        command: module and first arguments.
    """
    with tempfile.TemporaryDirectory(prefix="ec-") as folder, zmq.Context() as context:
        address = f"ipc://{folder}/run/engine.sock"
        log_path = Path(folder) / "log"
        model = Path(folder) / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(MODEL))
        popen = _start([*command, "--model", str(model), "--listen", address, *flags], log_path)
        engine = Engine(popen, address, log_path, context)
        try:
            yield engine
        finally:
            for client in engine.clients:
                client.close()
            children = psutil.Process(popen.pid).children(recursive=True) if popen.poll() is None else []
            _end(popen)
        assert wait_ended(children, DEADLINE_S) == [], "a child outlived the engine"
        if popen.returncode != -signal.SIGKILL:
            left = [str(path) for path in Path(folder).rglob("*") if path.name not in KEPT]
            assert left == [], f"left behind: {left}\n{engine.log()}"


def engine_with(behaviour: str, *flags: str) -> contextlib.AbstractContextManager[Engine]:
    """Start an engine-core whose worker is a process that behaves as said, see executor/fake_worker.py."""
    return running_engine(*flags, command=(FAKE_ENGINE, behaviour))


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """A TCP port that the kernel gives to nobody else; whoever is told of it may listen there."""
    with socket.socket() as holder:
        # Listening sockets of libzmq have it too: with it two may be bound to a port if only one listens.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def _start(words: list[str], log_path: Path) -> subprocess.Popen[bytes]:
    temporary = log_path.parent / "tmp"
    temporary.mkdir()
    with log_path.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(temporary), "XDG_RUNTIME_DIR": str(temporary)},
        )


def _end(popen: subprocess.Popen[bytes]) -> None:
    if popen.poll() is not None:
        return
    popen.terminate()
    try:
        popen.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.wait()
        raise
