"""A part of a parameter, and where its numbers come from."""

from __future__ import annotations

from typing import NamedTuple

from splitserve.worker.layers.parameter import Parameter, Part
from splitserve.worker.ops.quantization import GroupForm
from splitserve.worker.weights.tensor_source import TensorSource


class Assignment(NamedTuple):
    """What the checkpoint holds of a part, and where it goes.

    Attributes:
        source: of the numbers.
        parameter, part: that it fills.
        integers: the form of the integers of a StoredTensor, which are taken as they are; None: its numbers.
    """

    source: TensorSource
    parameter: Parameter
    part: Part
    integers: GroupForm | None = None
