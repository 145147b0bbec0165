"""Captures work in CUDA graphs that share one pool of memory."""

from __future__ import annotations

from collections.abc import Callable

import torch


class Captures:
    """The graphs of one GPU; none of them runs beside another.

    torch.cuda.graph does more: each time it gives all memory that is not in use, pinned memory too, back to
    the driver, from which the steps after it have to take it again, slowly, or in vain. And it leaves its
    stream current where a capture cannot be ended.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        # Memory of the pool is reused on the stream that has freed it.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._newest: torch.cuda.CUDAGraph | None = None

    def capture(self, run: Callable[[], object]) -> Callable[[], object]:
        """Record work, and return what runs it; nothing runs meanwhile.

        Args:
            run: enqueues kernels on memory that stays where it is, and waits for nothing. It has run before:
                kernels are loaded, and NCCL's connections made, when they are first used.

        Raises:
            RuntimeError: what run raises, or the driver; torch.OutOfMemoryError among them.
        """
        torch.cuda.synchronize()
        try:
            return self._record(run)
        except torch.OutOfMemoryError:
            pass
        # The pool takes memory of the driver alone, while the allocator keeps what run took before.
        torch.cuda.empty_cache()
        return self._record(run)

    def _record(self, run: Callable[[], object]) -> Callable[[], object]:
        graph = torch.cuda.CUDAGraph()
        pool = self._newest.pool() if self._newest is not None else None
        with torch.cuda.stream(self._stream):
            # In the default mode NCCL's own thread, which looks after exchanges, would break the capture off.
            graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                run()
            finally:
                graph.capture_end()
        # Kept though its owner may drop it: torch's allocator refuses a pool that no graph has any more.
        self._newest = graph
        return graph.replay
