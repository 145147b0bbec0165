"""The layers of one pipeline stage, in a model that the library has built with all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn
from transformers import PreTrainedModel

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.errors import ConfigError
from splitserve.worker.generic.skeleton import refusal
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.parallel.shares import share


class States(Protocol):
    """What the library's model without its head returns: hidden states [1, T, H]."""

    @property
    def last_hidden_state(self) -> torch.Tensor:
        """Of all tokens."""


class OtherLayer(nn.Module):
    """In the place of a layer of another stage: hands on what it was given, or else what it is called with.

    Args:
        layer: whose place it takes; models ask layers for some attributes, such as their kind of attention.

    Attributes:
        given: hidden states [1, T, H] that the stage before has sent; None for none.
        seen: those that it was called with last.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        for name, value in vars(layer).items():
            if not name.startswith("_"):
                setattr(self, name, value)
        self.given: torch.Tensor | None = None
        self.seen: torch.Tensor | None = None

    def forward(self, hidden_states: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        """Return hidden states."""
        self.seen = hidden_states
        return hidden_states if self.given is None else self.given


class NoEmbedding(nn.Module):
    """In the place of the embedding of a later stage: zeros, which its first layer does not get."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._size, self._dtype = size, dtype

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return [..., H]."""
        return torch.zeros((*token_ids.shape, self._size), dtype=self._dtype, device=token_ids.device)


class StageLayers:
    """Takes all that other stages hold out of a model, and passes hidden states from stage to stage.

    Args:
        ctx: of a rank of a stage.
        config: of the checkpoint.
        model: as the library built it; changed.

    Attributes:
        layers: numbers of this stage's.
        is_last: this stage makes final hidden states and logits.

    Raises:
        ConfigError: the library has no plan of what passes between the architecture's layers.
    """

    def __init__(self, ctx: LayerContext, config: ModelConfig, model: PreTrainedModel) -> None:
        assert ctx.stage is not None, "there are several stages"
        self._stage = stage = ctx.stage
        self._dtype, self._size = ctx.workspace.dtype, config.hidden_size
        self.layers = share(config.num_layers, stage.index, stage.count)
        self.is_last = stage.index == stage.count - 1
        plan = model.base_model.pp_plan
        name = next((name for name in plan if _is_list(model.base_model, name, config.num_layers)), None)
        if name is None or list(plan[name][1]) != ["hidden_states"]:
            raise ConfigError(
                f"--pipeline-parallel-size must be 1 for {config.architecture} in the layers of the "
                f"transformers library, got {stage.count}: transformers has no plan of what passes on"
            )
        layers = getattr(model.base_model, name)
        for i in range(config.num_layers):
            if i not in self.layers:
                layers[i] = OtherLayer(layers[i])
        self._before: OtherLayer | None = layers[self.layers.start - 1] if stage.index else None
        self._behind: OtherLayer | None = None if self.is_last else layers[self.layers.stop]
        if self._before is not None:
            model.set_input_embeddings(NoEmbedding(self._size, self._dtype))
        if self._behind is not None:
            names = list(plan)
            for later in names[names.index(name) + 1 :]:
                setattr(model.base_model, later, nn.Identity())

    def run(self, base: Callable[[], States], num_tokens: int) -> torch.Tensor:
        """Compute this stage's part of a step.

        Args:
            base: runs the model without its head.
            num_tokens: T of the step.

        Returns:
            Hidden states [T, H] behind this stage's layers; the next stage, if any, has been sent them.

        Raises:
            RankLostError: another stage is gone or did not respond in time.
        """
        if self._before is not None:
            received = torch.empty(num_tokens, self._size, dtype=self._dtype)
            self._stage.receive(received)
            self._before.given = received.unsqueeze(0)
        made = base().last_hidden_state
        if self._behind is None:
            return made[0]
        hidden = self._passed()[0].contiguous()
        self._stage.send(hidden)
        return hidden

    def check(self, config: ModelConfig) -> None:
        """Refuse what was not hidden states in a trial.

        Raises:
            ModelLoadError: says what passes instead.
        """
        if self._behind is None:
            return
        passed = self._passed()
        if passed.dtype != self._dtype or passed.dim() != 3 or passed.shape[2] != self._size:
            raise refusal(config, f"{list(passed.shape)} of {passed.dtype} pass from layer to layer")

    def _passed(self) -> torch.Tensor:
        assert self._behind is not None, "this is not the last stage"
        assert self._behind.seen is not None, "all layers are called"
        return self._behind.seen


def _is_list(base: nn.Module, name: str, num_layers: int) -> bool:
    module = getattr(base, name, None)
    return isinstance(module, nn.ModuleList) and len(module) == num_layers
