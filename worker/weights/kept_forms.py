"""Which matrices are kept as the integers of the file: those that a form of the kernels holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from splitserve.worker.device.base import Device
from splitserve.worker.layers.parameter import PackedParameter
from splitserve.worker.weights.assignment import Assignment
from splitserve.worker.weights.formats.base import IntegerForm, StoredTensor

_NONE = IntegerForm("plain", is_exact=True)


def keep_integers(assignments: Sequence[Assignment], dtype: torch.dtype, device: Device) -> list[Assignment]:
    """Give parameters the form of the integers in the file, where all of their parts have the same.

    If it holds the scales exactly, too, that is so by default: nothing is rounded a second time, and the
    memory is that of the file. Otherwise it is so for parameters that were to have that form, of whose
    numbers only the scales are rounded then. Called before anything is allocated.

    Args:
        assignments: of a plan.
        dtype: of the model; integers multiply bfloat16.
        device: only a CPU has kernels for integers.

    Returns:
        The assignments, those marked whose integers are taken.
    """
    if device.name != "cpu" or dtype != torch.bfloat16:
        return list(assignments)
    forms: dict[int, set[IntegerForm]] = defaultdict(set)
    for each in assignments:
        forms[id(each.parameter)].add(_integer_form(each))
    return [_marked(each, forms[id(each.parameter)]) for each in assignments]


def _integer_form(assignment: Assignment) -> IntegerForm:
    source, parameter, part = assignment[:3]
    if not isinstance(source, StoredTensor) or not isinstance(parameter, PackedParameter):
        return _NONE
    return source.integer_form(parameter.own_window(part))


def _marked(assignment: Assignment, found: set[IntegerForm]) -> Assignment:
    parameter = assignment.parameter
    forms = {each.form for each in found}
    if len(forms) != 1 or "plain" in forms or not isinstance(parameter, PackedParameter):
        return assignment
    (form,) = forms
    is_exact = all(each.is_exact for each in found)
    return assignment._replace(takes_integers=parameter.keep_as(form, by_default=is_exact))
