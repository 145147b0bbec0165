"""The head that gives each label a number, read from the pooled state of a prompt."""

from __future__ import annotations

import torch

from splitserve.engine_core.checkpoint.config.classifier import HeadTraits
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.linear import WholeLinear
from splitserve.worker.layers.norm import LayerNorm


class ClassifierHead:
    """Perhaps a dense layer, its activation and a norm, then the layer of the labels."""

    def __init__(self, ctx: LayerContext, config: ModelConfig) -> None:
        assert config.classifier is not None, "the model has labels"
        head, size = config.classifier.head, config.hidden_size
        self._ops = ctx.ops
        self._activation = head.activation
        self._dense: WholeLinear | None = None
        self._norm: LayerNorm | None = None
        if head.dense:
            self._dense = WholeLinear(ctx, "classifier_dense", head.dense, (size, size), bias=head.dense_bias)
        if head.norm:
            self._norm = _norm(ctx, config, head)
        shape = (len(config.classifier.labels), size)
        self._output = WholeLinear(ctx, "label_numbers", head.output, shape, bias=head.output_bias)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """Map pooled states [n, H] to the labels' numbers, float32 [n, L] in this head's buffer."""
        if self._dense is not None:
            states = self._dense(states)
            self._activate(states)
        if self._norm is not None:
            states = self._norm(states)
        return self._output(states, torch.float32)

    def _activate(self, x: torch.Tensor) -> None:
        if self._activation == "tanh":
            # A soft cap at 1 is tanh.
            self._ops.soft_cap(x, x, 1.0)
        else:
            self._ops.gelu(x, x, "tanh" if self._activation == "gelu_tanh" else "none")


def _norm(ctx: LayerContext, config: ModelConfig, head: HeadTraits) -> LayerNorm:
    has_bias = config.encoder is None or config.encoder.norms_have_bias
    return LayerNorm(ctx, head.norm, config.hidden_size, config.norm_eps, has_bias=has_bias)
