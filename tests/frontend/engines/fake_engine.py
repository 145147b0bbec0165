"""A scripted engine on a real ROUTER: the test says what it answers, message by message."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TypeVar

import msgspec
import zmq
import zmq.asyncio

from splitserve.engine_core.ipc.codec import encode, frontend_decoder
from splitserve.engine_core.ipc.messages import (
    AddRequest,
    Call,
    CallResult,
    EngineMessage,
    FrontendMessage,
    Hello,
    Ping,
    Ready,
)
from splitserve.engine_core.ipc.wire import ModelInfo
from tests.frontend.engines.messages import pong, ready

M = TypeVar("M", bound=FrontendMessage)
DEADLINE_S = 60.0


class FakeEngine:
    """Says Ready to Hello and Pong to Ping by itself; the rest lies in `received` for the test to answer.

    Attributes:
        hello_answer: what Hello gets; None leaves it unanswered.
        answers_pings: whether Ping is answered.
        epoch: used in Ready and Pong.
    """

    def __init__(self, address: str, model: ModelInfo, *, epoch: int = 1, lease_s: float = 10.0) -> None:
        self.hello_answer: EngineMessage | None = ready(epoch, model=model, lease_s=lease_s)
        self.answers_pings = True
        self.answers_calls = True
        self.epoch = epoch
        self.num_hellos = 0
        self._address = address
        self._context = zmq.asyncio.Context()
        self._received: asyncio.Queue[FrontendMessage] = asyncio.Queue()
        self._known = False

    async def __aenter__(self) -> FakeEngine:
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(self._address)
        self._task = asyncio.create_task(self._serve())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close()
        self._context.term()

    async def _serve(self) -> None:
        while True:
            identity, frame = await self._socket.recv_multipart()
            message = frontend_decoder.decode(frame)
            self.identity = identity
            match message:
                case Hello():
                    self.num_hellos += 1
                    answer = self.hello_answer
                    if isinstance(answer, Ready):
                        answer = msgspec.structs.replace(answer, lease_renewed=self._known)
                    self._known = True
                    if answer is not None:
                        await self.send(answer)
                    self._received.put_nowait(message)
                case Ping(nonce=nonce):
                    if self.answers_pings:
                        await self.send(pong(nonce, self.epoch))
                case Call(call_id=call_id):
                    if self.answers_calls:
                        await self.send(CallResult(call_id, True, "done"))
                case _:
                    self._received.put_nowait(message)

    async def send(self, message: EngineMessage) -> None:
        await self.send_frame(encode(message))

    async def send_frame(self, *frames: bytes) -> None:
        await self._socket.send_multipart([self.identity, *frames])

    async def receive(self, kind: type[M]) -> M:
        """Return the next message of a kind; others before it are dropped."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                message = await self._received.get()
                if isinstance(message, kind):
                    return message

    async def receive_adds(self, count: int) -> list[AddRequest]:
        return [await self.receive(AddRequest) for _ in range(count)]
