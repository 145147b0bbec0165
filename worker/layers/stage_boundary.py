"""How a model is split into pipeline stages: which layers this stage holds, what passes between stages."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from splitserve.worker.layers.context import LayerContext
from splitserve.worker.parallel.shares import share


class StageBoundary:
    """Passes the residual, and the delta still to be added to it, from the previous stage to the next.

    Args:
        hidden_size: H.

    Attributes:
        is_first: this stage holds the embedding.
        is_last: this stage holds the final norm and the output head.
    """

    def __init__(self, ctx: LayerContext, hidden_size: int) -> None:
        self._stage = ctx.stage
        self._workspace = ctx.workspace
        self._hidden_size = hidden_size
        self.is_first = ctx.stage is None or ctx.stage.index == 0
        self.is_last = ctx.stage is None or ctx.stage.index == ctx.stage.count - 1

    def layers(self, num_layers: int) -> range:
        """Return which of a model's layers this stage holds."""
        return (
            range(num_layers)
            if self._stage is None
            else share(num_layers, self._stage.index, self._stage.count)
        )

    def take_over(self, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Wait for a step of T tokens; return residual and delta, [T, H] each."""
        residual, delta, _none = self.take_over_all(num_tokens, 0)
        return residual, delta

    def take_over_all(
        self, num_tokens: int, num_states: int
    ) -> tuple[torch.Tensor, torch.Tensor, Sequence[torch.Tensor]]:
        """Wait for the same and as many hidden states, [T, H] each, as the stage before hands on."""
        assert self._stage is not None, "only a pipeline has stages before"
        num_parts = 2 + num_states
        parts = self._workspace.take("boundary", num_parts * num_tokens, self._hidden_size)
        self._stage.receive(parts)
        residual, delta, *states = parts.view(num_parts, num_tokens, self._hidden_size).unbind()
        return residual, delta, states

    def hand_on(
        self, residual: torch.Tensor, delta: torch.Tensor, states: Sequence[torch.Tensor] = ()
    ) -> None:
        """Send copies of residual, delta and hidden states [T, H], as the next step reuses their buffers."""
        assert self._stage is not None, "only a pipeline has stages behind"
        # Not added here: the next norm fuses the addition, and rounds as it would without a pipeline.
        self._stage.send(torch.cat((residual, delta, *states)))
