"""Where a checkpoint holds the experts of a layer: in tensors of each expert, or stacked in one of all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from splitserve.engine_core.checkpoint.config.model_config import ExpertConfig
from splitserve.engine_core.checkpoint.config.traits import ExpertTraits
from splitserve.worker.layers.parameter import Part
from splitserve.worker.parallel.shares import scaled


class _Rows(NamedTuple):
    """Outputs of an expert.

    Attributes:
        tensor: its name, see ExpertTraits.
        expert: its number.
        first_row: of the parameter, where they begin.
        outputs: among those that the tensor holds of the expert.
        num_stored: how many these are.
    """

    tensor: str
    expert: int
    first_row: int
    outputs: range
    num_stored: int

    @property
    def stacked_outputs(self) -> range:
        """The outputs among those of all experts."""
        return scaled(self.outputs, 1, self.expert * self.num_stored)


class StoredExperts:
    """The parts of a sparse layer's parameters, one expert's after the other's.

    Args:
        module: name in the checkpoint.
        hidden_size: H.
        experts: E of them, with I units.
        traits: names and orders.
        held: those of the experts that the parameters hold.
    """

    def __init__(
        self, module: str, hidden_size: int, experts: ExpertConfig, traits: ExpertTraits, held: range
    ) -> None:
        self._module = module
        self._hidden = hidden_size
        self._num_experts, self._num_units = experts.num_experts, experts.inner_size
        self._traits = traits
        self._held = held
        self._is_mxfp4 = experts.is_mxfp4 and not traits.has_blocks

    def inner(self, units: range) -> list[Part]:
        """Return the rows of gate and up for some units of each expert."""
        inputs = range(self._hidden)
        return [
            self._matrix(rows, (rows.num_stored, self._hidden), inputs) for rows in self._inner_rows(units)
        ]

    def outer(self, units: range) -> list[Part]:
        """Return the ways back from some units of each expert."""
        return [self._matrix(rows, (self._hidden, self._num_units), units) for rows in self._outer_rows()]

    def inner_bias(self, units: range) -> list[Part]:
        """Return the biases of these units' gates and ups; none if the family has none."""
        return [self._vector(rows) for rows in self._inner_rows(units)] if self._traits.bias else []

    def outer_bias(self) -> list[Part]:
        """Return the biases of the ways back; none if the family has none."""
        return [self._vector(rows) for rows in self._outer_rows()] if self._traits.bias else []

    def _inner_rows(self, units: range) -> Iterator[_Rows]:
        names, num_units = self._traits.inner, self._num_units
        if self._are_apart:
            spans = [(names[0], scaled(units, 2), 2 * num_units)]
        elif len(names) == 2:
            spans = [(name, units, num_units) for name in names]
        elif self._traits.has_pairs:
            spans = [(names[0], scaled(units, 2), 2 * num_units)]
        else:
            spans = [(names[0], scaled(units, 1, first), 2 * num_units) for first in (0, num_units)]
        first_row = 0
        for expert in self._held:
            for name, outputs, num_stored in spans:
                yield _Rows(name, expert, first_row, outputs, num_stored)
                first_row += len(outputs)

    def _outer_rows(self) -> Iterator[_Rows]:
        outputs = range(self._hidden)
        for place, expert in enumerate(self._held):
            yield _Rows(self._traits.outer, expert, place * self._hidden, outputs, self._hidden)

    def _matrix(self, rows: _Rows, shape: tuple[int, int], inputs: range) -> Part:
        """Return rows and some inputs of an expert's matrix, which has this shape."""
        name = f"{self._module}.{rows.tensor.format(rows.expert)}"
        if "{}" in rows.tensor:
            return Part(name, shape, rows.first_row, outputs=rows.outputs, inputs=inputs)
        if self._is_mxfp4 or not self._traits.is_transposed:
            return Part(
                name,
                (self._num_experts, *shape),
                rows.first_row,
                outputs=rows.stacked_outputs,
                inputs=inputs,
                is_mxfp4=self._is_mxfp4,
                neighbour=self._neighbour(rows),
            )
        first = rows.expert * shape[1]
        return Part(
            name,
            (self._num_experts, shape[1], shape[0]),
            rows.first_row,
            transposed=True,
            outputs=rows.outputs,
            inputs=scaled(inputs, 1, first),
            all_inputs=range(first, first + shape[1]),
        )

    def _vector(self, rows: _Rows) -> Part:
        assert "{}" not in rows.tensor, "no family has biases of its own for each expert"
        shape = (self._num_experts, rows.num_stored)
        name, neighbour = f"{self._module}.{rows.tensor}_bias", self._neighbour(rows, "_bias")
        return Part(name, shape, rows.first_row, outputs=rows.stacked_outputs, neighbour=neighbour)

    @property
    def _are_apart(self) -> bool:
        """Whether gates and ups are neighbours here, but not in the checkpoint."""
        return self._traits.has_pairs and len(self._traits.inner) == 2

    def _neighbour(self, rows: _Rows, ending: str = "") -> str:
        """Return the tensor of the ups that lie between these gates."""
        if not self._are_apart or rows.tensor != self._traits.inner[0]:
            return ""
        return f"{self._module}.{self._traits.inner[1]}{ending}"
