"""Where a rank's shard of a model runs: device, attention backend and peer ranks."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from splitserve.worker.attention.base import AttentionBackend
from splitserve.worker.device.base import Device
from splitserve.worker.parallel.mesh import ALONE, Mesh

DeviceT_co = TypeVar("DeviceT_co", bound=Device, covariant=True)


class Placement(NamedTuple, Generic[DeviceT_co]):
    """The device, backend and ranks that a model is built for.

    Attributes:
        device: holds the weights, the activations and the KV cache.
        backend: computes attention, on that device.
        mesh: the ranks that shard the model.
    """

    device: DeviceT_co
    backend: AttentionBackend
    mesh: Mesh = ALONE
