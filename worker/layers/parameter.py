"""How a layer's weights relate to a checkpoint's tensors: declared, checked, and only then allocated."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from splitserve.worker.device.base import Device
from splitserve.worker.ops.matrix import Matrix
from splitserve.worker.ops.quantization import FORMS, WeightForm, WeightForms


class Part(NamedTuple):
    """One checkpoint tensor, or a rank's share of it, and the rows of a parameter that it fills.

    Attributes:
        name: in the checkpoint.
        shape: in the checkpoint.
        first_row: row of the parameter where it starts.
        transposed: the checkpoint holds [in, out], the parameter [out, in].
        outputs: which of the outputs this rank holds; None for all.
        inputs: which of the inputs, of a matrix; None for all.
    """

    name: str
    shape: tuple[int, ...]
    first_row: int = 0
    transposed: bool = False
    outputs: range | None = None
    inputs: range | None = None

    @property
    def num_rows(self) -> int:
        """Rows of the parameter that it fills."""
        return len(self.taken_outputs)

    @property
    def taken_outputs(self) -> range:
        """Outputs that are taken."""
        if self.outputs is not None:
            return self.outputs
        return range(self.shape[-1] if self.transposed else self.shape[0])

    @property
    def taken_inputs(self) -> range:
        """Inputs that are taken, of a matrix."""
        if self.inputs is not None:
            return self.inputs
        return range(self.shape[0] if self.transposed else self.shape[-1])


class Window(NamedTuple):
    """What is read of a checkpoint tensor: ranges of its dimensions, columns None for a vector."""

    rows: range
    columns: range | None

    @property
    def width(self) -> int:
        """Elements of one row."""
        return 1 if self.columns is None else len(self.columns)


class Parameter(ABC):
    """One weight, fused from one or more checkpoint tensors along its first dimension.

    Args:
        shape: of the parameter, [out, in] for a linear layer.
        parts: they cover its rows in order and without gaps.
    """

    __slots__ = ("parts", "shape")

    def __init__(self, shape: tuple[int, ...], parts: Sequence[Part]) -> None:
        assert [part.first_row for part in parts] == _starts(parts), "parts must follow each other"
        assert sum(part.num_rows for part in parts) == shape[0], "parts must cover the parameter"
        self.shape = shape
        self.parts = tuple(parts)

    @property
    def num_elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @abstractmethod
    def allocate(self, dtype: torch.dtype, device: Device) -> None:
        """Take its memory; the loader fills all of it."""

    def takes_pieces(self, part: Part) -> bool:
        """Whether fill may be called with some of a part's rows, or only with all of them."""
        return True

    @abstractmethod
    def window(self, part: Part) -> Window:
        """Return what fill has to be given of a part's checkpoint tensor."""

    @abstractmethod
    def fill(self, part: Part, first: int, rows: torch.Tensor) -> None:
        """Write some rows of a part's window, as the checkpoint has them.

        Args:
            part: of this parameter.
            first: index of the first of them within the window.
            rows: [n, ...] of any dtype that can be loaded, on the CPU or the parameter's device; not kept.
        """


class DenseParameter(Parameter):
    """A vector, such as a norm's weight or a bias."""

    __slots__ = ("_tensor",)

    def __init__(self, shape: tuple[int], parts: Sequence[Part]) -> None:
        super().__init__(shape, parts)
        self._tensor: torch.Tensor | None = None

    @property
    def tensor(self) -> torch.Tensor:
        """The weight; only there once it is allocated."""
        assert self._tensor is not None, "the parameter is not allocated"
        return self._tensor

    def allocate(self, dtype: torch.dtype, device: Device) -> None:
        """Take its memory."""
        self._tensor = torch.empty(self.shape, dtype=dtype, device=device.torch_device)

    def window(self, part: Part) -> Window:
        """Return the rank's elements."""
        return Window(part.taken_outputs, None)

    def fill(self, part: Part, first: int, rows: torch.Tensor) -> None:
        """Write some elements of a part."""
        start = part.first_row + first
        self.tensor[start : start + rows.shape[0]].copy_(rows)


class PackedParameter(Parameter):
    """A matrix in the order and form in which the device's kernels read it, packed while it is loaded.

    Args:
        form: whether and how it is quantised.
    """

    __slots__ = ("_form", "_weight")

    def __init__(self, shape: tuple[int, int], parts: Sequence[Part], form: WeightForm = "plain") -> None:
        super().__init__(shape, parts)
        self._form = form
        self._weight: Matrix | None = None

    @property
    def weight(self) -> Matrix:
        """The weight; only there once it is allocated."""
        assert self._weight is not None, "the parameter is not allocated"
        return self._weight

    def allocate(self, dtype: torch.dtype, device: Device) -> None:
        """Reserve its memory, which is taken as it is filled."""
        self._weight = device.matrix((self.shape[0], self.shape[1]), dtype, self._form)

    def takes_pieces(self, part: Part) -> bool:
        """A scale comes from whole rows, and a piece of a transposed tensor has none."""
        return self._form == "plain" or not part.transposed

    def window(self, part: Part) -> Window:
        """Return the rank's rectangle; all inputs where an output's scale comes from all of them."""
        outputs, inputs = part.taken_outputs, part.taken_inputs
        if self._form == "int8":
            inputs = part._replace(inputs=None).taken_inputs
        return Window(inputs, outputs) if part.transposed else Window(outputs, inputs)

    def fill(self, part: Part, first: int, rows: torch.Tensor) -> None:
        """Pack some rows of a part, or columns if the checkpoint holds it transposed."""
        kept = part.inputs if self._form == "int8" else None
        if part.transposed:
            self.weight.fill(rows.t(), part.first_row, first, kept)
        else:
            self.weight.fill(rows, part.first_row + first, kept=kept)


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

    def allocate(self, device: Device) -> None:
        """Compute it."""
        self._tensor = self._make().to(device.torch_device)


class WeightPlan:
    """Every parameter of a model, in the order its layers declared them.

    Args:
        optional_prefix: start of tensor names that some checkpoints of the architecture leave out.
        ignored_names: tensors that a checkpoint may hold and the model has no use for.
        forms: in what form matrices are kept.
    """

    def __init__(
        self,
        optional_prefix: str = "",
        ignored_names: Sequence[str] = (),
        forms: WeightForms = FORMS["none"],
    ) -> None:
        self.optional_prefix = optional_prefix
        self.ignored_names = frozenset(ignored_names)
        self._forms = forms
        self._parameters: list[Parameter] = []
        self._tables: list[Table] = []

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._parameters)

    @property
    def num_elements(self) -> int:
        """Numbers this rank holds."""
        return sum(parameter.num_elements for parameter in self._parameters)

    @property
    def num_params(self) -> int:
        """Parameters of the model in the usual sense: what it was trained with, by all ranks of a layer."""
        return sum(map(math.prod, self._shapes.values()))

    @property
    def names(self) -> list[str]:
        """Tensors of the checkpoint that it needs, each once."""
        return list(self._shapes)

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {part.name: part.shape for parameter in self._parameters for part in parameter.parts}

    def declare_linear(self, shape: tuple[int, int], parts: Sequence[Part]) -> PackedParameter:
        """Add a matrix of attention or MLP made of these parts."""
        return self._declare_matrix(shape, parts, self._forms.linear)

    def declare_head(self, name: str, shape: tuple[int, int], rows: range | None = None) -> PackedParameter:
        """Add an output head, or an embedding that is one too: one checkpoint tensor, or rows of it."""
        return self._declare_rows(Part(name, shape, outputs=rows), self._forms.head)

    def declare_rows(self, name: str, shape: tuple[int, int], rows: range | None = None) -> PackedParameter:
        """Add rows that are only looked up, never quantised: one checkpoint tensor, or rows of it."""
        return self._declare_rows(Part(name, shape, outputs=rows), "plain")

    def _declare_rows(self, part: Part, form: WeightForm) -> PackedParameter:
        return self._declare_matrix((part.num_rows, part.shape[1]), [part], form)

    def _declare_matrix(
        self, shape: tuple[int, int], parts: Sequence[Part], form: WeightForm
    ) -> PackedParameter:
        parameter = PackedParameter(shape, parts, form)
        self._parameters.append(parameter)
        return parameter

    def declare_vector(self, size: int, parts: Sequence[Part]) -> DenseParameter:
        """Add a vector made of these parts."""
        parameter = DenseParameter((size,), parts)
        self._parameters.append(parameter)
        return parameter

    def declare_table(self, make: Callable[[], torch.Tensor]) -> Table:
        """Add a computed tensor."""
        table = Table(make)
        self._tables.append(table)
        return table

    def allocate(self, dtype: torch.dtype, device: Device) -> None:
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
