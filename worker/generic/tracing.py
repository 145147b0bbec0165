"""What a step of a library's model computes: calls of torch and launches of our kernels, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch.overrides import TorchFunctionMode

Kernel = Callable[..., None]
# Beside those whose names end with a line.
_OPERATORS = ("add", "and", "floordiv", "lshift", "mod", "mul", "or", "pow", "rshift", "sub", "truediv")
_IN_PLACE = {"__setitem__", "__ixor__", *(f"__i{name}__" for name in _OPERATORS)}


class Launch(NamedTuple):
    """A call of our kernels.

    Attributes:
        kernel: function of the tensors, which it reads and writes.
        tensors: its arguments.
    """

    kernel: Kernel
    tensors: tuple[torch.Tensor, ...]


class Operation(NamedTuple):
    """A call of a function of torch.

    Attributes:
        function: of torch, or a method of its tensors.
        args, kwargs: that it was called with.
        made: what it returned.
    """

    function: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    made: object

    @property
    def name(self) -> str:
        """Of the function."""
        return getattr(self.function, "__name__", "")


Node = Launch | Operation


class StepTrace(TorchFunctionMode):
    """Notes what a step within a `with` block computes. What is noted is kept alive, and so keeps its place.

    Our kernels do not run, since ranks would then exchange twice what they exchange once in other steps. So
    nothing that depends on them has values.

    Args:
        launcher: of the modules that run.

    Attributes:
        nodes: in order.
    """

    def __init__(self, launcher: Launcher) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self._launcher = launcher

    def __enter__(self) -> StepTrace:
        """Begin."""
        super().__enter__()  # type: ignore[no-untyped-call]
        self._launcher.trace = self
        return self

    def __exit__(self, *exception: object) -> None:
        """End."""
        self._launcher.trace = None
        super().__exit__(*exception)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run a function and note it."""
        made = func(*args, **(kwargs or {}))
        self.nodes.append(Operation(func, args, kwargs or {}, made))
        return made


class Launcher:
    """Runs our kernels for the modules of one model; single-threaded.

    Attributes:
        trace: where launches are noted instead of run; None: they are run.
    """

    def __init__(self) -> None:
        self.trace: StepTrace | None = None
        self._wanted: torch.Tensor | None = None
        self._num_tokens = 0

    def narrow(self, wanted: torch.Tensor | None, num_tokens: int) -> None:
        """Compute only some tokens from now on, where there is a row for each; others stay undefined.

        Args:
            wanted: numbers of the tokens, int [S]; None for all.
            num_tokens: T of the step.
        """
        self._wanted, self._num_tokens = wanted, num_tokens

    def rows(
        self, kernel: Kernel, x: torch.Tensor, size: int | None = None, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Return what a kernel makes of the rows of x [..., K], each by itself: [..., size].

        Args:
            kernel: function of out [R, size] and x [R, K].
            x: its input; on the meta device nothing is computed.
            size: None for K.
            dtype: of the result, None for that of x.
        """
        made = x.new_empty((*x.shape[:-1], size or x.shape[-1]), dtype=dtype or x.dtype)
        if x.is_meta:
            return made
        out, rows = made.view(-1, made.shape[-1]), x.reshape(-1, x.shape[-1])
        if self._wanted is None or len(rows) != self._num_tokens:
            self(kernel, out, rows)
        else:
            part = out.new_empty((len(self._wanted), out.shape[1]))
            self(kernel, part, rows[self._wanted])
            out[self._wanted] = part
        return made

    def __call__(self, kernel: Kernel, *tensors: torch.Tensor) -> None:
        """Call a kernel with tensors; it has to know everything else."""
        if self.trace is None:
            kernel(*tensors)
        else:
            self.trace.nodes.append(Launch(kernel, tensors))


def storage_of(tensor: torch.Tensor) -> int:
    """Return what tells the memory of a tensor from that of others which are alive."""
    return tensor.untyped_storage().data_ptr()


def tensors_in(*values: object) -> Iterator[torch.Tensor]:
    """Return the tensors among arguments or results, also in lists and the like."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from tensors_in(*value.values())
        elif isinstance(value, Iterable) and isinstance(value, (tuple, list)):
            yield from tensors_in(*value)


def is_empty(operation: Operation) -> bool:
    """Whether an operation makes a tensor without values."""
    return operation.name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


def changes(operation: Operation) -> bool:
    """Whether an operation writes to one of its arguments."""
    name = operation.name
    if "out" in operation.kwargs or name in _IN_PLACE:
        return True
    return name.endswith("_") and not name.endswith("__")


def reads_values(operation: Operation) -> bool:
    """Whether Python gets to see the values of a tensor."""
    return operation.name in (
        "__bool__",
        "__float__",
        "__index__",
        "__int__",
        "allclose",
        "equal",
        "item",
        "nonzero",
        "numpy",
        "tolist",
    )
