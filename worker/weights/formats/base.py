"""The interface of a matrix that the checkpoint stores quantized, in several tensors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch

from splitserve.engine_core.checkpoint.weight_files import Checkpoint, CheckpointTensor
from splitserve.engine_core.errors import ModelLoadError
from splitserve.worker.layers.parameter import Window
from splitserve.worker.ops.quantization import GroupCodes, GroupForm
from splitserve.worker.weights.tensor_source import Staging

FLOATS = ("F32", "BF16", "F16")
# Computed at once: intermediate results stay in the cache, and one thread is faster than waking others.
_CACHED_ELEMENTS = 2**15

Values = Callable[[range], torch.Tensor]
"""Function of some rows that returns them in float32."""


class StoredTensor(ABC):
    """A TensorSource whose numbers are computed; names, shapes and dtypes are checked where it is made.

    Args:
        tensors: the checkpoint's, the largest first.
    """

    def __init__(self, *tensors: CheckpointTensor) -> None:
        self._tensors = tensors

    @property
    def tensors(self) -> tuple[CheckpointTensor, ...]:
        """The checkpoint's tensors that it comes from, the largest first."""
        return self._tensors

    @abstractmethod
    def check_values(self) -> None:
        """Read what decides whether the rest can be read, such as scales, before memory is taken.

        Raises:
            ModelLoadError: a value is out of range.
        """

    @abstractmethod
    def num_bytes(self, window: Window) -> int:
        """Return how many bytes of the files a region takes, but for scales."""

    def row_bytes(self, window: Window) -> int:
        """Return how much memory a row of a region takes when it is read, in float32."""
        return window.width * torch.float32.itemsize

    @abstractmethod
    def load(self, window: Window) -> Values:
        """Read a region of a matrix from the files.

        Returns:
            Function of some rows of the region, counted from its first, that returns them in float32 [n, k].

        Raises:
            ModelLoadError: the file was truncated since it was checked.
        """

    def integer_form(self, window: Window) -> GroupForm | None:
        """Return the form of the kernels that holds a region, whose values are checked, exactly, or None."""
        return None

    def input_order(self, window: Window) -> torch.Tensor | None:
        """Return which input of a region each column of its integers is, int64 [K'], -1 for none.

        None: they are as in the file.
        """
        return None

    def load_codes(self, window: Window) -> GroupCodes:
        """Return the integers of a region in that form, their columns in that order.

        Raises:
            ModelLoadError: the file was truncated since it was checked.
        """
        raise AssertionError("no form holds its integers")

    def read(self, window: Window, staging: Staging) -> torch.Tensor:
        """Return the numbers of a region in float32, valid until the next call.

        Raises:
            ModelLoadError: a number is infinite or NaN, or the file was truncated since it was checked.
        """
        num_rows, width = len(window.rows), window.width
        values = self.load(window)
        region = staging.take(num_rows * self.row_bytes(window)).view(torch.float32).view(num_rows, width)
        step = max(1, _CACHED_ELEMENTS // width)
        for first in range(0, num_rows, step):
            rows = range(first, min(first + step, num_rows))
            numbers = values(rows)
            # Both are NaN where a number is.
            if not all(map(math.isfinite, numbers.aminmax())):
                raise ModelLoadError(f"{where(self.tensors[0])} holds values that are not finite numbers")
            region[rows.start : rows.stop] = numbers
        return region


class Places(NamedTuple):
    """Where the tensors that a matrix consists of are looked for.

    Attributes:
        checkpoint: the open files.
        module: name of the matrix without ".weight".
        prefix: that the checkpoint's names may lack.
        shape: [N, K] of the plain matrix.
    """

    checkpoint: Checkpoint
    module: str
    prefix: str
    shape: tuple[int, int]

    def find(self, name: str) -> CheckpointTensor | None:
        """Return the tensor of this last name, None if there is none."""
        return self.checkpoint.find(f"{self.module}.{name}", self.prefix)

    def take(self, name: str, dtypes: tuple[str, ...], *shapes: tuple[int, ...]) -> CheckpointTensor:
        """Return the tensor of this last name.

        Raises:
            ModelLoadError: it is missing, or has another dtype or none of the shapes.
        """
        found = self.find(name)
        if found is None:
            raise ModelLoadError(
                f"{self.checkpoint.file_names}: missing tensor '{self.module}.{name}' of a quantized matrix"
            )
        check(found, dtypes, *shapes)
        return found

    def error(self, problem: str) -> ModelLoadError:
        """Return (not raise) an error about the matrix."""
        return ModelLoadError(f"{self.checkpoint.file_names}: {self.module}.weight {problem}")


def check(source: CheckpointTensor, dtypes: tuple[str, ...], *shapes: tuple[int, ...]) -> None:
    """Check dtype and shape of a tensor.

    Raises:
        ModelLoadError: it has another dtype or none of the shapes.
    """
    if source.entry.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise ModelLoadError(
            f"{where(source)} has shape {list(source.entry.shape)}, config.json asks for {wanted}"
        )
    if source.entry.dtype not in dtypes:
        raise ModelLoadError(
            f"{where(source)} has dtype {source.entry.dtype}; supported are {', '.join(dtypes)}"
        )


def where(source: CheckpointTensor) -> str:
    """Return the file and name of a tensor, for errors."""
    return f"{source.file.path}: tensor {source.name!r}"
