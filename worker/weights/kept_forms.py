"""Which matrices are kept as the integers of the file: those that a form of the kernels holds exactly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch

from splitserve.worker.device.base import Device
from splitserve.worker.layers.parameter import PackedParameter, Parameter
from splitserve.worker.ops.quantization import GroupForm
from splitserve.worker.weights.assignment import Assignment
from splitserve.worker.weights.formats.base import StoredTensor


def keep_integers(assignments: Sequence[Assignment], dtype: torch.dtype, device: Device) -> list[Assignment]:
    """Give parameters whose parts are all integers in the file the smallest form that holds all of them.

    Nothing is rounded a second time then. Parameters that were to be quantised to fewer bits than the file
    has are left alone. Called before anything is allocated.

    Args:
        assignments: of a plan.
        dtype: of the model.
        device: says with what integers are multiplied.

    Returns:
        The assignments, those marked whose integers are taken.
    """
    if dtype not in device.coded_dtypes:
        return list(assignments)
    integers = [_integers_of(each) for each in assignments]
    found: dict[int, list[_Integers | None]] = defaultdict(list)
    for each, own in zip(assignments, integers, strict=True):
        found[id(each.parameter)].append(own)
    kept = {id(each.parameter): each.parameter for each in assignments}
    are_kept = {
        key: _keep(parameter, found[key], device.multiplies_byte_groups) for key, parameter in kept.items()
    }
    return [
        each._replace(integers=own.form) if own and are_kept[id(each.parameter)] else each
        for each, own in zip(assignments, integers, strict=True)
    ]


class _Integers(NamedTuple):
    """The form of a part's integers, and the order of their columns."""

    form: GroupForm
    order: torch.Tensor | None


def _integers_of(assignment: Assignment) -> _Integers | None:
    source, parameter, part = assignment[:3]
    if not isinstance(source, StoredTensor) or not isinstance(parameter, PackedParameter) or part.transposed:
        return None
    window = parameter.own_window(part)
    form = source.integer_form(window)
    return None if form is None else _Integers(form, source.input_order(window))


def _keep(parameter: Parameter, found: list[_Integers | None], has_byte_groups: bool) -> bool:
    parts = [each for each in found if each is not None]
    are_mixed = len({each.form.is_float for each in parts}) > 1
    if len(parts) < len(found) or are_mixed or not isinstance(parameter, PackedParameter):
        return False
    order = parts[0].order
    if not all(_are_equal(order, each.order) for each in parts):
        return False
    form = reduce(GroupForm.joined, (each.form for each in parts))
    return parameter.keep_as(form, order, has_byte_groups=has_byte_groups)


def _are_equal(order: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if order is None or other is None:
        return order is other
    return torch.equal(order, other)
