"""A CUDA stream that runs beside the steps, and how the two wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch


class CudaSideStream:
    """See worker.device.base.SideStream.

    It has a higher priority: a small kernel starts as soon as one thread block of a large kernel ends,
    instead of after all of them.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    def run(self, pieces: Iterable[Callable[[], None]]) -> list[Callable[[], None]]:
        """Enqueue each piece, with an event after it."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            return [self._run(piece) for piece in pieces]

    def _run(self, piece: Callable[[], None]) -> Callable[[], None]:
        piece()
        done = self._stream.record_event()
        return lambda: torch.cuda.current_stream().wait_event(done)
