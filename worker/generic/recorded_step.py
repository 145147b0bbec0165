"""Puts a traced step into a recording: launches of our kernels one after the other, without the modules.

What torch computes between them is left to it where our kernels do not have the same bits: it is called in
Python then, at the same place of every replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from splitserve.worker.device.workspace import Workspace
from splitserve.worker.generic.memory_plan import plan_memory
from splitserve.worker.generic.native_ops import Place, native_form
from splitserve.worker.generic.tracing import Node, Operation, reads_values, storage_of, tensors_in
from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.decode import Recording


class UnrecordableError(Exception):
    """A step looks at values, so another one may compute something else; the message says where."""


def record(
    recording: Recording, nodes: list[Node], made: torch.Tensor, role: str, workspace: Workspace
) -> torch.Tensor:
    """Run a traced step, so that the recording holds it.

    Args:
        recording: in progress.
        nodes: of the trace.
        made: the step's result in it, a matrix.
        role: of the buffer that the result goes to, in the workspace.
        workspace: for what is between, too.

    Returns:
        The result, in that buffer.

    Raises:
        UnrecordableError: the step cannot be recorded.
    """
    for node in nodes:
        if isinstance(node, Operation) and reads_values(node):
            raise UnrecordableError(f"it looks at values by {node.name}")
    plan = plan_memory(nodes, made)
    out = workspace.take(role, made.shape[0], made.shape[1], made.dtype)
    buffer = workspace.take(f"{role}_steps", 1, plan.num_bytes, torch.uint8)[0]

    def place(tensor: torch.Tensor) -> torch.Tensor:
        return plan.place(tensor, buffer)

    left: list[Callable[[], None]] = []
    for node in plan.nodes:
        native = _native(node, place)
        if native is None:
            assert isinstance(node, Operation), "launches are native"
            left.append(_by_torch(node, place))
            continue
        _call(recording, left)
        native()
    _call(recording, left)
    ops.elementwise("copy", out, place(made))
    return out


def _native(node: Node, place: Place) -> Callable[[], None] | None:
    if isinstance(node, Operation):
        return native_form(node, place)
    kernel, tensors = node.kernel, [place(tensor) for tensor in node.tensors]
    return lambda: kernel(*tensors)


def _by_torch(node: Operation, place: Place) -> Callable[[], None]:
    """Return a function that runs an operation with placed tensors and brings results to their places."""
    args, kwargs = _placed(node.args, place), _placed(node.kwargs, place)
    assert isinstance(args, tuple), "of the kind that they were"
    assert isinstance(kwargs, dict), "of the kind that they were"
    inputs = set(map(storage_of, tensors_in(node.args, node.kwargs)))
    # Views and what is changed lie where the arguments do.
    targets = [None if storage_of(x) in inputs else place(x) for x in tensors_in(node.made)]
    function = node.function

    def run() -> None:
        for made, target in zip(tensors_in(function(*args, **kwargs)), targets, strict=True):
            if target is not None:
                target.copy_(made)

    return run


def _placed(value: object, place: Place) -> object:
    """Return an argument with placed tensors."""
    if isinstance(value, torch.Tensor):
        return place(value)
    if isinstance(value, Mapping):
        return {name: _placed(inner, place) for name, inner in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_placed(inner, place) for inner in value)  # type: ignore[attr-defined, call-arg]
    return value


def _call(recording: Recording, functions: list[Callable[[], None]]) -> None:
    """Have functions called one after the other, and forget them."""
    if not functions:
        return
    called = tuple(functions)
    functions.clear()

    @torch.inference_mode()
    def run() -> None:
        for function in called:
            function()

    recording.call(run)
