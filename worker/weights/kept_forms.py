"""Which matrices are kept as the integers of the file: those that the kernels' forms hold exactly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from splitserve.worker.device.base import Device
from splitserve.worker.layers.parameter import PackedParameter
from splitserve.worker.ops.quantization import WeightForm
from splitserve.worker.weights.assignment import Assignment
from splitserve.worker.weights.formats.base import StoredTensor


def keep_integers(assignments: Sequence[Assignment], dtype: torch.dtype, device: Device) -> list[Assignment]:
    """Give parameters the form of the integers in the file, where all of their parts have the same.

    Nothing is rounded a second time then, and they take as much memory as in the file. Before anything is
    allocated.

    Args:
        assignments: of a plan.
        dtype: of the model; integers multiply bfloat16.
        device: only a CPU has kernels for integers.

    Returns:
        The assignments, those marked whose integers are taken.
    """
    if device.name != "cpu" or dtype != torch.bfloat16:
        return list(assignments)
    forms: dict[int, set[WeightForm]] = defaultdict(set)
    for each in assignments:
        forms[id(each.parameter)].add(_exact_form(each))
    return [_marked(each, forms[id(each.parameter)]) for each in assignments]


def _exact_form(assignment: Assignment) -> WeightForm:
    source, parameter, part = assignment[:3]
    if not isinstance(source, StoredTensor) or not isinstance(parameter, PackedParameter):
        return "plain"
    return source.exact_form(parameter.own_window(part))


def _marked(assignment: Assignment, forms: set[WeightForm]) -> Assignment:
    parameter = assignment.parameter
    if len(forms) != 1 or "plain" in forms or not isinstance(parameter, PackedParameter):
        return assignment
    (form,) = forms
    return assignment._replace(takes_integers=parameter.keep_as(form))
