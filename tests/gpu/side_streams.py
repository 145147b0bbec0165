"""Streams beside the steps' that are as early or as late as a device may be."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import torch

from splitserve.worker.device.base import SideStream
from splitserve.worker.device.cuda import CudaDevice
from splitserve.worker.device.side_stream import CudaSideStream

# Several times as long as a step of the tests takes.
_LATE_CYCLES = 20_000_000


class AtOnce:
    """Is always done already."""

    def run(self, pieces: Iterable[Callable[[], None]]) -> list[Callable[[], None]]:
        waits = []
        for piece in pieces:
            piece()
            waits.append(_nothing)
        return waits


class LastMoment:
    """Does a piece of work only when somebody waits for it.

    Attributes:
        waiting: pieces that were enqueued, and that nobody has waited for.
        num_done: the others.
    """

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self.num_done = 0

    def run(self, pieces: Iterable[Callable[[], None]]) -> list[Callable[[], None]]:
        return [self._put_off(piece) for piece in pieces]

    def _put_off(self, piece: Callable[[], None]) -> Callable[[], None]:
        self.waiting.append(piece)
        end = self.num_done + len(self.waiting)
        return lambda: self._catch_up(end)

    def _catch_up(self, end: int) -> None:
        while self.num_done < end:
            self.waiting.popleft()()
            self.num_done += 1


class Late:
    """The GPU's own stream, on which every piece begins long after the steps' stream could have gone on."""

    def __init__(self, device: torch.device) -> None:
        self._stream = CudaSideStream(device)

    def run(self, pieces: Iterable[Callable[[], None]]) -> list[Callable[[], None]]:
        return self._stream.run(_late(piece) for piece in pieces)


def side_streams(device: CudaDevice) -> dict[str, SideStream]:
    """By name, those that a device may be given in a test."""
    if device.side_stream is None:
        return {"at once": AtOnce(), "last moment": LastMoment()}
    return {"its own": device.side_stream, "late": Late(device.torch_device)}


def _late(piece: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        torch.cuda._sleep(_LATE_CYCLES)
        piece()

    return run


def _nothing() -> None:
    pass
