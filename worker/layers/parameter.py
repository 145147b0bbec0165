"""How a layer's weights map to checkpoint tensors: declared, checked, and only then allocated."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch

from splitserve.worker.device.base import Device
from splitserve.worker.ops.matrix import Matrix
from splitserve.worker.ops.quantization import GroupCodes, GroupForm, KeptForm

# Of the integers of a file that are kept where a form was asked for.
_KEPT_BITS: dict[KeptForm, int] = {"plain": 8, "int8": 8, "int4": 4}
# Forms in which a row has one scale.
_PER_ROW = ("int8", "w8a8")


class HeadPairs(NamedTuple):
    """Elements of a head that turn together are neighbours in the checkpoint: 0 and 1, 2 and 3, and so on.

    The kernels turn element i with element i + rotary_dim / 2, so the loader brings them there. Dot products
    of queries and keys stay what they are, as both are reordered.

    Attributes:
        head_dim: elements of a head.
        rotary_dim: of those that turn; even.
        first: of these.
    """

    head_dim: int
    rotary_dim: int
    first: int = 0

    def parted(self, rows: torch.Tensor) -> torch.Tensor:
        """Return whole heads [n * head_dim, ...] with the first elements of all pairs before the second."""
        heads = rows.view(-1, self.head_dim, *rows.shape[1:])
        before, turned, rest = heads.tensor_split((self.first, self.first + self.rotary_dim), dim=1)
        return torch.cat((before, turned[:, ::2], turned[:, 1::2], rest), dim=1).view(rows.shape)


class Part(NamedTuple):
    """One checkpoint tensor, or a rank's shard of it, and the rows of the parameter that it fills.

    Attributes:
        name: in the checkpoint.
        shape: in the checkpoint; dimensions before the last two count as more rows.
        first_row: row of the parameter where it starts.
        transposed: the checkpoint holds [in, out], the parameter [out, in].
        outputs: output range that this rank holds; None for all.
        inputs: input range that this rank holds, for a matrix; None for all.
        all_inputs: those of the whole matrix that it is a part of, if the tensor stacks several; None: all.
        is_absorbed: it is a part of a module that is stored as usual and used the other way round, which
            `transposed` says, too; so the checkpoint may hold it quantized.
        is_mxfp4: the checkpoint holds it as codes of 4 bits and scales, in two tensors.
        neighbour: name of another tensor, whose rows lie between those of the first, in the shape of both
            together; "": there is none.
        pairs: its outputs are heads whose pairs the loader takes apart; None: as they are.
    """

    name: str
    shape: tuple[int, ...]
    first_row: int = 0
    transposed: bool = False
    outputs: range | None = None
    inputs: range | None = None
    all_inputs: range | None = None
    is_absorbed: bool = False
    is_mxfp4: bool = False
    neighbour: str = ""
    pairs: HeadPairs | None = None

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of the tensors that hold it: its own, or those of its codes and its scales, or both."""
        if self.neighbour:
            return self.name, self.neighbour
        return (f"{self.name}_blocks", f"{self.name}_scales") if self.is_mxfp4 else (self.name,)

    @property
    def halves(self) -> tuple[Part, Part]:
        """The two tensors of a part with a neighbour, each as a whole part."""
        shape = (self.shape[0], self.shape[1] // 2, *self.shape[2:])
        return Part(self.name, shape), Part(self.neighbour, shape)

    @property
    def num_rows(self) -> int:
        """Rows of the parameter that it fills."""
        return len(self.taken_outputs)

    @property
    def taken_outputs(self) -> range:
        """Outputs that this rank loads."""
        if self.outputs is not None:
            return self.outputs
        return range(self.shape[-1] if self.transposed else self.shape[0])

    @property
    def taken_inputs(self) -> range:
        """Inputs that this rank loads, for a matrix."""
        return self.matrix_inputs if self.inputs is None else self.inputs

    @property
    def matrix_inputs(self) -> range:
        """Inputs of the matrix, of all ranks."""
        if self.all_inputs is not None:
            return self.all_inputs
        return range(self.shape[0] if self.transposed else self.shape[-1])


class Window(NamedTuple):
    """The region read from a checkpoint tensor: ranges of its dimensions; columns is None for a vector."""

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
        parts: must cover its rows in order and without gaps.
    """

    __slots__ = ("parts", "shape")

    def __init__(self, shape: tuple[int, ...], parts: Sequence[Part]) -> None:
        assert [part.first_row for part in parts] == _starts(parts), "parts must follow each other"
        assert sum(part.num_rows for part in parts) == shape[0], "parts must cover the parameter"
        self.shape = shape
        self.parts = tuple(parts)

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Memory it takes; only available once allocated."""

    @abstractmethod
    def planned_bytes(self, dtype: torch.dtype, device: Device) -> int:
        """Memory that it will take."""

    @abstractmethod
    def allocate(self, dtype: torch.dtype, device: Device) -> None:
        """Allocate its memory; the loader fills all of it."""

    def takes_pieces(self, part: Part) -> bool:
        """Whether fill() may be called with some of a part's rows; otherwise only with all of them."""
        return True

    @abstractmethod
    def window(self, part: Part) -> Window:
        """Return the region of a part's checkpoint tensor that fill() needs."""

    @abstractmethod
    def fill(self, part: Part, first: int, rows: torch.Tensor) -> None:
        """Write some rows of a part's window, in checkpoint order.

        Args:
            part: of this parameter.
            first: index of the first row within the window.
            rows: [n, ...] of any loadable dtype, on the CPU or the parameter's device; not kept.
        """


class DenseParameter(Parameter):
    """A vector, such as a norm's weight or a bias.

    Args:
        dtype: None for that of the model's parameters.
    """

    __slots__ = ("_dtype", "_tensor")

    def __init__(
        self, shape: tuple[int, ...], parts: Sequence[Part], dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(shape, parts)
        self._dtype = dtype
        self._tensor: torch.Tensor | None = None

    @property
    def tensor(self) -> torch.Tensor:
        """The weight; only available once allocated."""
        assert self._tensor is not None, "the parameter is not allocated"
        return self._tensor

    @property
    def num_bytes(self) -> int:
        """Memory it takes."""
        return self.tensor.nbytes

    def planned_bytes(self, dtype: torch.dtype, device: Device) -> int:
        """Memory that it will take."""
        return self.num_elements * (self._dtype or dtype).itemsize

    def allocate(self, dtype: torch.dtype, device: Device) -> None:
        """Allocate its memory."""
        self._tensor = torch.empty(self.shape, dtype=self._dtype or dtype, device=device.torch_device)

    def window(self, part: Part) -> Window:
        """Return this rank's elements."""
        return Window(part.taken_outputs, None)

    def fill(self, part: Part, first: int, rows: torch.Tensor) -> None:
        """Write some elements of a part."""
        start = part.first_row + first
        self.tensor[start : start + rows.shape[0]].copy_(rows)


class PackedParameter(Parameter):
    """A matrix in the format that the device's kernels read, packed while it is loaded.

    Args:
        form: whether and how it is quantised.
        num_experts: how many experts' matrices lie below each other in it; each part belongs to one.
        may_change_form: it may be kept as the integers of a file.
        may_change_order: its columns may then be out of order; who multiplies looks at `order`.
        of_samples: it is only for the rows of a step that sample.

    Attributes:
        order: the input of each column of the weight, which may have more than inputs, -1 for none, int32;
            None: they are as the layer has them.
    """

    __slots__ = (
        "_form",
        "_group_form",
        "_may_change_form",
        "_may_change_order",
        "_num_experts",
        "_of_samples",
        "_weight",
        "order",
    )

    def __init__(
        self,
        shape: tuple[int, int],
        parts: Sequence[Part],
        form: KeptForm = "plain",
        num_experts: int = 1,
        *,
        may_change_form: bool = False,
        may_change_order: bool = False,
        of_samples: bool = False,
    ) -> None:
        super().__init__(shape, parts)
        self.order: torch.Tensor | None = None
        self._form = form
        self._group_form: GroupForm | None = None
        self._may_change_form = may_change_form
        self._may_change_order = may_change_order
        self._num_experts = num_experts
        self._of_samples = of_samples
        self._weight: Matrix | None = None

    @property
    def weight(self) -> Matrix:
        """The weight; only available once allocated."""
        assert self._weight is not None, "the parameter is not allocated"
        return self._weight

    @property
    def num_bytes(self) -> int:
        """Memory it takes."""
        return self.weight.num_bytes + self._order_bytes

    def planned_bytes(self, dtype: torch.dtype, device: Device) -> int:
        """Memory that it will take."""
        shape = self._kept_shape
        return device.matrix_bytes(shape, dtype, self._form, self._num_experts) + self._order_bytes

    def step_bytes(self, dtype: torch.dtype, device: Device, num_tokens: int, num_samples: int) -> int:
        """Return what a product with it takes beside its rows, at most, in a step of so many rows."""
        shape = self._kept_shape
        num_rows = num_samples if self._of_samples else num_tokens
        ordered = 0 if self.order is None else num_rows * shape[1] * dtype.itemsize
        # Those of experts are never written out.
        written = device.written_bytes(shape, dtype, self._form, num_rows) if self._num_experts == 1 else 0
        return ordered + written

    def allocate(self, dtype: torch.dtype, device: Device) -> None:
        """Reserve its memory, backed as it is filled."""
        self._weight = device.matrix(self._kept_shape, dtype, self._form, self._num_experts)
        if self.order is not None:
            self.order = self.order.to(device.torch_device)

    def takes_pieces(self, part: Part) -> bool:
        """False where scales need whole rows and the tensor is stored transposed."""
        return self._form == "plain" or not part.transposed

    def window(self, part: Part) -> Window:
        """Return this rank's rectangle, with all inputs if an output's scale depends on all of them."""
        outputs, inputs = part.taken_outputs, part.taken_inputs
        if self._form in _PER_ROW:
            inputs = part.matrix_inputs
        return Window(inputs, outputs) if part.transposed else Window(outputs, inputs)

    def own_window(self, part: Part) -> Window:
        """Return this rank's rectangle of a part that is not transposed, whatever its form."""
        return Window(part.taken_outputs, part.taken_inputs)

    def keep_as(
        self, form: GroupForm, order: torch.Tensor | None = None, *, has_byte_groups: bool = False
    ) -> bool:
        """Take the form of integers in the file, before it is allocated, unless it was to be in fewer bits.

        Args:
            form: that holds the integers of all parts.
            order: the input of each of their columns, -1 for none, the same for all; None: as in the file.
            has_byte_groups: the device multiplies codes of 4 bits in groups with activations of int8.

        Returns:
            Whether it has the form.
        """
        if self._form == "w8a8":
            # Codes of more bits in groups take twice as long in prompts as int8 with a scale per output.
            takes_it = not form.group or (has_byte_groups and form.bits == 4)
            form = form._replace(takes_int8=True)
        else:
            takes_it = form.bits <= _KEPT_BITS.get(self._form, 0)
        takes_it = takes_it and self._may_change_form and (order is None or self._may_change_order)
        if takes_it:
            self._form, self._group_form = form.kept, form
            self.order = None if order is None else order.int()
        return takes_it

    @property
    def _kept_shape(self) -> tuple[int, int]:
        """Of the weight."""
        return self.shape[0], self.shape[1] if self.order is None else len(self.order)

    @property
    def _order_bytes(self) -> int:
        return 0 if self.order is None else self.order.nbytes

    def fill_codes(self, part: Part, first: int, codes: GroupCodes, own: GroupForm) -> None:
        """Pack some rows of a part's own window as integers, which come in a form of their own."""
        assert self._group_form is not None, "it has not taken the form of integers"
        self.weight.fill_group_codes(codes.converted(own, self._group_form), part.first_row + first)

    def fill(self, part: Part, first: int, rows: torch.Tensor) -> None:
        """Pack some rows of a part, or columns if the checkpoint holds it transposed."""
        kept = None
        if self._form in _PER_ROW and part.inputs is not None:
            first_input = part.matrix_inputs.start
            kept = range(part.inputs.start - first_input, part.inputs.stop - first_input)
        if part.transposed:
            self.weight.fill(rows.t(), part.first_row, first, kept)
        else:
            self.weight.fill(rows, part.first_row + first, kept=kept)


def _starts(parts: Sequence[Part]) -> list[int]:
    starts, row = [], 0
    for part in parts:
        starts.append(row)
        row += part.num_rows
    return starts
