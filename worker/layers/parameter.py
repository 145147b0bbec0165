"""How a layer's weights relate to a checkpoint's tensors: declared, checked, and only then allocated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch


class Part(NamedTuple):
    """One checkpoint tensor and the rows of a parameter that it fills.

    Attributes:
        name: in the checkpoint.
        shape: in the checkpoint.
        first_row: row of the parameter where it starts.
        transposed: the checkpoint holds [in, out], the parameter [out, in].
    """

    name: str
    shape: tuple[int, ...]
    first_row: int = 0
    transposed: bool = False

    @property
    def num_rows(self) -> int:
        """Rows of the parameter that it fills."""
        return self.shape[-1] if self.transposed else self.shape[0]


class Parameter:
    """One dense weight, fused from one or more checkpoint tensors along its first dimension.

    Args:
        shape: of the parameter, [out, in] for a linear layer.
        parts: they cover its rows in order and without gaps.
    """

    __slots__ = ("_tensor", "parts", "shape")

    def __init__(self, shape: tuple[int, ...], parts: Sequence[Part]) -> None:
        assert [part.first_row for part in parts] == _starts(parts), "parts must follow each other"
        assert sum(part.num_rows for part in parts) == shape[0], "parts must cover the parameter"
        self.shape = shape
        self.parts = tuple(parts)
        self._tensor: torch.Tensor | None = None

    @property
    def tensor(self) -> torch.Tensor:
        """The weight; only there once it is allocated."""
        assert self._tensor is not None, "the parameter is not allocated"
        return self._tensor

    @property
    def num_elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    def allocate(self, dtype: torch.dtype, device: torch.device) -> None:
        """Take its memory; the loader fills all of it."""
        self._tensor = torch.empty(self.shape, dtype=dtype, device=device)

    def rows_of(self, part: Part) -> torch.Tensor:
        """Return the rows that a part fills, as a view."""
        return self.tensor[part.first_row : part.first_row + part.num_rows]


class Table:
    """A tensor that a layer computes rather than loads, and that also waits for the checkpoint's check.

    Args:
        make: computes it on the CPU.
    """

    __slots__ = ("_make", "_tensor")

    def __init__(self, make: Callable[[], torch.Tensor]) -> None:
        self._make = make
        self._tensor: torch.Tensor | None = None

    @property
    def tensor(self) -> torch.Tensor:
        """The table; only there once it is allocated."""
        assert self._tensor is not None, "the table is not allocated"
        return self._tensor

    def allocate(self, device: torch.device) -> None:
        """Compute it."""
        self._tensor = self._make().to(device)


class WeightPlan:
    """Every parameter of a model, in the order its layers declared them.

    Args:
        optional_prefix: start of tensor names that some checkpoints of the architecture leave out.
        ignored_names: tensors that a checkpoint may hold and the model has no use for.
    """

    def __init__(self, optional_prefix: str = "", ignored_names: Sequence[str] = ()) -> None:
        self.optional_prefix = optional_prefix
        self.ignored_names = frozenset(ignored_names)
        self._parameters: list[Parameter] = []
        self._tables: list[Table] = []

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._parameters)

    @property
    def num_elements(self) -> int:
        """Parameters of the model in the usual sense: numbers it was trained with, tied ones counted once."""
        return sum(parameter.num_elements for parameter in self._parameters)

    def declare(self, shape: tuple[int, ...], parts: Sequence[Part]) -> Parameter:
        """Add a parameter made of these parts."""
        parameter = Parameter(shape, parts)
        self._parameters.append(parameter)
        return parameter

    def declare_whole(self, name: str, shape: tuple[int, ...]) -> Parameter:
        """Add a parameter that is one checkpoint tensor of the same shape."""
        return self.declare(shape, [Part(name, shape)])

    def declare_table(self, make: Callable[[], torch.Tensor]) -> Table:
        """Add a computed tensor."""
        table = Table(make)
        self._tables.append(table)
        return table

    def allocate(self, dtype: torch.dtype, device: torch.device) -> None:
        """Take the memory of every parameter and compute the tables."""
        for parameter in self._parameters:
            parameter.allocate(dtype, device)
        for table in self._tables:
            table.allocate(device)


def _starts(parts: Sequence[Part]) -> list[int]:
    starts, row = [], 0
    for part in parts:
        starts.append(row)
        row += part.num_rows
    return starts
