"""Which matrices are kept as the integers of the file: those that a form of the kernels holds exactly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import reduce

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
        device: says in which dtypes integers are multiplied.

    Returns:
        The assignments, those marked whose integers are taken.
    """
    if dtype not in device.coded_dtypes:
        return list(assignments)
    forms = [_integer_form(each) for each in assignments]
    found: dict[int, list[GroupForm | None]] = defaultdict(list)
    for each, form in zip(assignments, forms, strict=True):
        found[id(each.parameter)].append(form)
    kept = {id(each.parameter): each.parameter for each in assignments}
    are_kept = {key: _keep(parameter, found[key]) for key, parameter in kept.items()}
    return [
        each._replace(integers=form) if are_kept[id(each.parameter)] else each
        for each, form in zip(assignments, forms, strict=True)
    ]


def _integer_form(assignment: Assignment) -> GroupForm | None:
    source, parameter, part = assignment[:3]
    if not isinstance(source, StoredTensor) or not isinstance(parameter, PackedParameter) or part.transposed:
        return None
    return source.integer_form(parameter.own_window(part))


def _keep(parameter: Parameter, found: list[GroupForm | None]) -> bool:
    forms = [form for form in found if form is not None]
    are_mixed = len({form.is_float for form in forms}) > 1
    if len(forms) < len(found) or are_mixed or not isinstance(parameter, PackedParameter):
        return False
    return parameter.keep_as(reduce(GroupForm.joined, forms))
