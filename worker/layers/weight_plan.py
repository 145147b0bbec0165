"""All weights and tables that a model's layers declare, before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch

from splitserve.engine_core.checkpoint.quantization.schemes import Quantization
from splitserve.worker.device.base import Device
from splitserve.worker.layers.parameter import DenseParameter, PackedParameter, Parameter, Part
from splitserve.worker.ops.quantization import FORMS, WeightForm, WeightForms


class Table:
    """A tensor that a layer computes rather than loads; also made only after the checkpoint is checked.

    Args:
        make: computes it on the CPU.
    """

    __slots__ = ("_make", "_tensor")

    def __init__(self, make: Callable[[], torch.Tensor]) -> None:
        self._make = make
        self._tensor: torch.Tensor | None = None

    @property
    def tensor(self) -> torch.Tensor:
        """The table; only available once allocated."""
        assert self._tensor is not None, "the table is not allocated"
        return self._tensor

    def allocate(self, device: Device) -> None:
        """Compute it."""
        self._tensor = self._make().to(device.torch_device)


class WeightPlan:
    """Every parameter of a model, in the order its layers declared them.

    Args:
        optional_prefix: prefix of tensor names that some checkpoints of the architecture omit.
        ignored_names: tensors that a checkpoint may hold but the model does not use; with a dot at the end:
            all whose names begin so.
        forms: storage formats of the matrices.
        quantization: how the checkpoint stores them; None if it quantizes none.
    """

    def __init__(
        self,
        optional_prefix: str = "",
        ignored_names: Sequence[str] = (),
        forms: WeightForms = FORMS["none"],
        quantization: Quantization | None = None,
    ) -> None:
        self.optional_prefix = optional_prefix
        self.ignored_names = frozenset(ignored_names)
        self.quantization = quantization
        self._forms = forms
        self._parameters: list[Parameter] = []
        self._tables: list[Table] = []

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._parameters)

    @property
    def linear_form(self) -> WeightForm:
        """In which matrices of attention and MLPs are kept, unless the checkpoint has them in another."""
        return self._forms.linear

    @property
    def num_elements(self) -> int:
        """Number of elements this rank holds."""
        return sum(parameter.num_elements for parameter in self._parameters)

    @property
    def num_bytes(self) -> int:
        """Memory that this rank's weights take; only available once allocated."""
        return sum(parameter.num_bytes for parameter in self._parameters)

    def planned_bytes(self, dtype: torch.dtype, device: Device) -> int:
        """Memory that this rank's weights will take."""
        return sum(parameter.planned_bytes(dtype, device) for parameter in self._parameters)

    def step_bytes(self, dtype: torch.dtype, device: Device, num_tokens: int, num_samples: int) -> int:
        """Return what the weights take of the memory of a step of so many rows, at most."""
        packed = (each for each in self._parameters if isinstance(each, PackedParameter))
        return max((each.step_bytes(dtype, device, num_tokens, num_samples) for each in packed), default=0)

    @property
    def num_params(self) -> int:
        """Parameter count of the model in the usual sense, summed over the ranks that shard a layer."""
        return sum(map(math.prod, self._shapes.values()))

    @property
    def names(self) -> list[str]:
        """Names of the checkpoint tensors it needs, each once."""
        parts = (part for parameter in self._parameters for part in parameter.parts)
        return list(dict.fromkeys(name for part in parts for name in part.tensor_names))

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {part.name: part.shape for parameter in self._parameters for part in parameter.parts}

    def declare_linear(
        self, shape: tuple[int, int], parts: Sequence[Part], *, may_change_order: bool = False
    ) -> PackedParameter:
        """Declare an attention or MLP matrix made of these parts.

        Args:
            shape: (N, K).
            parts: of it.
            may_change_order: who multiplies with it looks at the order of its columns.
        """
        return self._add(
            PackedParameter(
                shape, parts, self._forms.linear, may_change_form=True, may_change_order=may_change_order
            )
        )

    def declare_experts(
        self, num_experts: int, shape: tuple[int, int], parts: Sequence[Part], form: WeightForm | None = None
    ) -> PackedParameter:
        """Declare the matrices of this shape of a layer's experts, one below the other.

        Args:
            num_experts: how many there are.
            shape: (N, K) of each.
            parts: one expert's after the other's.
            form: in which they are kept; None for that of other matrices.
        """
        rows, columns = shape
        return self._add(
            PackedParameter(
                (num_experts * rows, columns),
                parts,
                form or self._forms.linear,
                num_experts,
                may_change_form=True,
            )
        )

    def declare_head(self, name: str, shape: tuple[int, int], rows: range | None = None) -> PackedParameter:
        """Declare an output head, or an embedding tied to it: one checkpoint tensor, or rows of it."""
        return self._declare_rows(Part(name, shape, outputs=rows), self._forms.head)

    def declare_rows(self, name: str, shape: tuple[int, int], rows: range | None = None) -> PackedParameter:
        """Declare a matrix that is not quantised while it is read, a lookup table or a router, or rows."""
        return self._declare_rows(Part(name, shape, outputs=rows), "plain")

    def declare(self, parameter: Parameter) -> None:
        """Declare a parameter of a kind of its own."""
        self._parameters.append(parameter)

    def _declare_rows(self, part: Part, form: WeightForm) -> PackedParameter:
        shape = (part.num_rows, part.shape[1])
        # Of those that are multiplied at all the codes of a file are for rows that sample.
        return self._add(PackedParameter(shape, [part], form, may_change_form=True, of_samples=True))

    def _add(self, parameter: PackedParameter) -> PackedParameter:
        self._parameters.append(parameter)
        return parameter

    def declare_heads(self, num_heads: int, shape: tuple[int, int], parts: Sequence[Part]) -> PackedParameter:
        """Declare a matrix of this shape per head, one below the other, never quantised."""
        rows, columns = shape
        return self._add(PackedParameter((num_heads * rows, columns), parts, "plain", num_heads))

    def declare_vector(
        self, size: int, parts: Sequence[Part], dtype: torch.dtype | None = None
    ) -> DenseParameter:
        """Declare a vector made of these parts; dtype None is the parameters'."""
        parameter = DenseParameter((size,), parts, dtype)
        self._parameters.append(parameter)
        return parameter

    def declare_table(self, make: Callable[[], torch.Tensor]) -> Table:
        """Declare a computed tensor."""
        table = Table(make)
        self._tables.append(table)
        return table

    def allocate(self, dtype: torch.dtype, device: Device) -> None:
        """Allocate every parameter and compute the tables."""
        for parameter in self._parameters:
            parameter.allocate(dtype, device)
        for table in self._tables:
            table.allocate(device)
