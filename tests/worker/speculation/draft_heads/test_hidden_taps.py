"""Hidden states of early layers reach the last stage of a pipeline, where somebody reads them."""

from __future__ import annotations

import torch

from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.device.workspace import Workspace
from splitserve.worker.models.draft_heads.hidden_taps import MAX_READ_ROWS, HiddenTaps

LAYERS = (1, 3, 6)
NUM_TOKENS, SIZE = 5, 8
STAGES = (range(0, 2), range(2, 4), range(4, 6))


def taps_of(layers: range, *, travels: bool = True) -> HiddenTaps:
    workspace = Workspace(torch.float32, torch.device("cpu"))
    return HiddenTaps(CpuDevice().ops, workspace, LAYERS, layers.start, travels=travels)


def stream(layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Residual and delta in front of a layer."""
    generator = torch.Generator().manual_seed(layer)
    residual, delta = torch.randn(2, NUM_TOKENS, SIZE, generator=generator).unbind()
    return residual, delta


def test_states_of_earlier_stages_come_in_the_order_of_their_layers() -> None:
    states: list[torch.Tensor] = []
    for stage, numbers in zip(STAGES, (0, 1, 2), strict=True):
        taps = taps_of(stage)
        assert taps.num_arriving(MAX_READ_ROWS) == numbers == len(states)
        taps.arrive(states)
        for layer in (*stage, 6) if stage is STAGES[-1] else stage:
            taps.take(layer, *stream(layer))
        states = [each.clone() for each in taps.departing(MAX_READ_ROWS, NUM_TOKENS, stage.stop)]
    places = torch.tensor([1, 4])
    expected = torch.cat([sum(stream(layer))[places] for layer in LAYERS], dim=1)  # type: ignore[index]
    assert torch.equal(taps.states(places), expected)


def test_where_nobody_reads_nothing_travels() -> None:
    for taps, num_rows in (
        (taps_of(STAGES[1]), MAX_READ_ROWS + 1),
        # Of the ranks of a stage one is asked.
        (taps_of(STAGES[1], travels=False), 1),
    ):
        assert taps.num_arriving(num_rows) == 0
        taps.arrive([])
        taps.take(3, *stream(3))
        assert taps.departing(num_rows, NUM_TOKENS, 4) == []
