"""What benchmarks.gpu_kernels times: a kernel call beside the same work in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class Case:
    """One kernel call and the same work in torch; both return what they computed.

    Attributes:
        num_bytes: what has to be read and written, each byte once.
        ceiling: what bounds it: "device" memory, or the bus "out" to the host or "in" from it.
        flops: operations of the matrix units, where these may bound it.
    """

    op: str
    shape: str
    ours: Callable[[], Tensor]
    torchs: Callable[..., Tensor]
    num_bytes: int
    ceiling: str = "device"
    flops: int = 0
