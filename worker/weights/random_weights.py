"""Random weights from a seed instead of a checkpoint: for timing models that are known by config only."""

from __future__ import annotations

from pathlib import Path

import torch

from splitserve.worker.device.base import Device
from splitserve.worker.layers.parameter import Parameter, Part
from splitserve.worker.layers.weight_plan import WeightPlan
from splitserve.worker.weights.loading import Progress

_CHUNK_ELEMENTS = 1 << 24


def draw_weights(
    directory: str | Path, plan: WeightPlan, dtype: torch.dtype, device: Device, progress: Progress
) -> None:
    """Allocate the plan's parameters and fill them with normal random numbers, made on the device.

    Matrices have variance 1 / K, so that activations keep their size; vectors stand around 1, as norms do.

    Args:
        directory: not read.
        plan: what the model needs.
        dtype: of the parameters.
        device: where they go.
        progress: called with (drawn_elements, total_elements).

    Raises:
        RuntimeError: the memory is not there.
    """
    progress(0, plan.num_elements)
    plan.allocate(dtype, device)
    generator = torch.Generator(device.torch_device).manual_seed(0)
    num_drawn = 0
    for parameter in plan:
        for part in parameter.parts:
            _draw(parameter, part, generator)
        num_drawn += parameter.num_elements
        progress(num_drawn, plan.num_elements)


def _draw(parameter: Parameter, part: Part, generator: torch.Generator) -> None:
    window = parameter.window(part)
    num_rows = len(window.rows)
    chunk = max(1, _CHUNK_ELEMENTS // window.width) if parameter.takes_pieces(part) else num_rows
    for first in range(0, num_rows, chunk):
        count = min(chunk, num_rows - first)
        shape = (count,) if window.columns is None else (count, window.width)
        values = torch.randn(shape, generator=generator, device=generator.device)
        if window.columns is None:
            values.mul_(0.02).add_(1)
        else:
            values *= parameter.shape[-1] ** -0.5
        parameter.fill(part, first, values)
