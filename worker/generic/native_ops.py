"""Which functions of torch our kernels compute, with the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import torch
from torch.overrides import TorchFunctionMode

from splitserve.worker.generic.tracing import Operation, changes, tensors_in
from splitserve.worker.ops.cpu import ops

_MAX_DIMS = 5
_DTYPES = (torch.float32, torch.bfloat16)
Binary = Literal["add", "sub", "mul"]
_BINARY: dict[str, Binary] = {
    "add": "add",
    "__add__": "add",
    "sub": "sub",
    "__sub__": "sub",
    "mul": "mul",
    "__mul__": "mul",
}
_NEGATIONS = ("neg", "__neg__")
_CATS = ("cat", "concat")
# Of which the result has the elements of the input in the same order.
_COPIES = ("clone", "contiguous", "flatten", "reshape", "to", "type_as", "float", "bfloat16")
# Below, torch on one thread takes less than waking others.
_LEAST_ELEMENTS = 2**15

Place = Callable[[torch.Tensor], torch.Tensor]
Native = Callable[[], None]


class LargeOperations(TorchFunctionMode):
    """Within a `with` block large operations of torch are computed by our kernels, on all their threads."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Compute an operation."""
        name = getattr(func, "__name__", "")
        if name in _BINARY or name in _NEGATIONS or name in _CATS:
            operation = Operation(func, args, kwargs or {}, _large_result(name, args, kwargs or {}))
            native = None if operation.made is None else native_form(operation, lambda tensor: tensor)
            if native is not None:
                native()
                return operation.made
        return func(*args, **(kwargs or {}))


def native_form(operation: Operation, place: Place) -> Native | None:
    """Return a function that calls our kernels for an operation; None if they do not compute it.

    Args:
        operation: as it was traced.
        place: function from its tensors to those that take their places.
    """
    made, name = operation.made, operation.name
    if not _is_fit(made) or changes(operation):
        return None
    assert isinstance(made, torch.Tensor)
    inputs = list(tensors_in(operation.args, operation.kwargs))
    if not inputs or not all(map(_is_fit, inputs)):
        return None
    placed, out = [place(x) for x in inputs], place(made)
    if name in _BINARY:
        is_plain = len(inputs) == 2 and len(operation.args) == 2
        same = {x.dtype for x in (*inputs, made)}
        return partial(ops.elementwise, _BINARY[name], out, *placed) if is_plain and len(same) == 1 else None
    if name in _NEGATIONS and out.dtype == placed[0].dtype:
        return partial(ops.elementwise, "neg", out, placed[0])
    if name in _CATS:
        return _cat(out, placed, _dim_of(operation.args, operation.kwargs))
    if name in _COPIES and len(placed) == 1 and out.is_contiguous() and out.numel() == placed[0].numel():
        return partial(ops.elementwise, "copy", out.view(placed[0].shape), placed[0])
    return None


def _is_fit(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _DTYPES and value.dim() <= _MAX_DIMS


def _dim_of(args: tuple[object, ...], kwargs: Mapping[str, object]) -> int | None:
    """Return the dimension along which tensors are joined, None if it is not said in the usual way."""
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    return dim if isinstance(dim, int) and set(kwargs) <= {"dim"} else None


def _cat(out: torch.Tensor, inputs: list[torch.Tensor], dim: int | None) -> Native | None:
    if dim is None or any(x.dtype != out.dtype or x.dim() != out.dim() for x in inputs):
        return None
    pieces, start = [], 0
    for x in inputs:
        pieces.append(out.narrow(dim, start, x.shape[dim]))
        start += x.shape[dim]

    def copy() -> None:
        for piece, x in zip(pieces, inputs, strict=True):
            ops.elementwise("copy", piece, x)

    return copy


def _large_result(name: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> torch.Tensor | None:
    """Return an empty tensor for an operation's result, laid out as torch would; None for a small one."""
    inputs = list(tensors_in(args))
    if name in _CATS:
        dim = _dim_of(args, kwargs)
        if dim is None or not inputs or any(x.dim() != inputs[0].dim() for x in inputs):
            return None
        shape = list(inputs[0].shape)
        shape[dim] = sum(x.shape[dim] for x in inputs)
        return inputs[0].new_empty(shape) if math.prod(shape) >= _LEAST_ELEMENTS else None
    largest = max(inputs, key=torch.Tensor.numel, default=None)
    if kwargs or largest is None or largest.numel() < _LEAST_ELEMENTS:
        return None
    # With the largest input's shape, or it would be a product of all pairs.
    fits = all(_repeats(x, largest) for x in inputs)
    return torch.empty_like(largest) if fits else None


def _repeats(x: torch.Tensor, like: torch.Tensor) -> bool:
    """Whether a tensor is repeated to another one's shape."""
    sizes = zip(reversed(x.shape), reversed(like.shape), strict=False)
    return x.dim() <= like.dim() and all(size in (1, wanted) for size, wanted in sizes)
