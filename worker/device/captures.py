"""Captures work as CUDA graphs that share one memory pool."""

from __future__ import annotations

from collections.abc import Callable

import torch


class Captures:
    """The graphs of one GPU, which never run concurrently.

    torch.cuda.graph is not used: each capture returns all unused memory, pinned memory too, to the driver, so
    later steps must allocate it again, slowly or without success. And if a capture cannot be ended, it
    leaves its stream current.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        # Memory of the pool is reused only on the stream that freed it.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._newest: torch.cuda.CUDAGraph | None = None

    def capture(self, run: Callable[[], object]) -> Callable[[], object]:
        """Capture work without running it, and return a function that replays it.

        Args:
            run: enqueues kernels on memory that does not move, without synchronising. Must have run before,
                since kernels are loaded, and NCCL connections made, at first use.

        Raises:
            RuntimeError: raised by run or by the driver; torch.OutOfMemoryError is one of them.
        """
        torch.cuda.synchronize()
        try:
            return self._record(run)
        except torch.OutOfMemoryError:
            pass
        # The pool allocates from the driver only, while the allocator still holds what the earlier run took.
        torch.cuda.empty_cache()
        return self._record(run)

    def _record(self, run: Callable[[], object]) -> Callable[[], object]:
        graph = torch.cuda.CUDAGraph()
        pool = self._newest.pool() if self._newest is not None else None
        with torch.cuda.stream(self._stream):
            # In the default mode NCCL's watchdog thread would invalidate the capture.
            graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                run()
            finally:
                graph.capture_end()
        # Kept even if its owner drops it: torch's allocator rejects a pool that no graph uses any more.
        self._newest = graph
        return graph.replay
