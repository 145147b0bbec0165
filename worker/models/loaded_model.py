"""A model whose weights are in memory, and the description of it sent to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.pooling import Pooling
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.worker.device.base import Device
from splitserve.worker.device.dtypes import dtype_name
from splitserve.worker.kv_cache.layout import BlockShape
from splitserve.worker.models.base import Model
from splitserve.worker.models.dense_layer import DenseLayer
from splitserve.worker.models.placement import Placement


class LoadedModel(NamedTuple):
    """A model in memory.

    Attributes:
        config: of the checkpoint, limited to the context that is served.
        dtype: of activations, and of weights that are not quantised.
        model: its layers.
        quantization: "none", "int8" or "int4".
        placement: where it computes.
        pooling: how it makes vectors of prompts; None if it generates text.
        dense: layers behind the pooling.
    """

    config: ModelConfig
    dtype: torch.dtype
    model: Model
    quantization: str
    placement: Placement[Device]
    pooling: Pooling | None = None
    dense: Sequence[DenseLayer] = ()

    def block_shape(self, block_size: int) -> BlockShape:
        """Return the shape of a KV block of block_size tokens."""
        model = self.model
        return BlockShape(model.num_layers, model.num_kv_heads, block_size, model.head_dim, self.dtype)

    @property
    def _embedding_size(self) -> int:
        if self.pooling is None or self.config.classifier is not None:
            return 0
        return self.pooling.dense[-1].out_features if self.pooling.dense else self.config.hidden_size

    @property
    def info(self) -> ModelInfo:
        """Return the description sent to the engine."""
        config, classifier = self.config, self.config.classifier
        return ModelInfo(
            path=config.path,
            architecture=config.architecture,
            dtype=dtype_name(self.dtype),
            vocab_size=config.vocab_size,
            max_model_len=config.max_model_len,
            eos_token_ids=list(config.eos_token_ids),
            num_params=self.model.num_params,
            sliding_window=config.sliding_window,
            quantization=self.quantization,
            embedding_size=self._embedding_size,
            normalizes=self.pooling is None or self.pooling.normalizes,
            labels=[] if classifier is None else list(classifier.labels),
            score_function="" if classifier is None else classifier.score_function,
            class_function="" if classifier is None else classifier.class_function,
        )
