"""A model whose weights are in memory, and the description of it sent to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.judging import YES, Judge
from splitserve.engine_core.checkpoint.pooling import Pooling
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.worker.device.base import Device
from splitserve.worker.device.dtypes import dtype_name
from splitserve.worker.kv_cache.layer_groups import LayerGroups, LayerPlace, group_layers
from splitserve.worker.kv_cache.layout import BlockShape
from splitserve.worker.models.base import Model
from splitserve.worker.models.dense_layer import DenseLayer
from splitserve.worker.models.draft_heads.whole_vocabulary import WholeVocabulary
from splitserve.worker.models.placement import Placement
from splitserve.worker.parallel.shares import share


class LoadedModel(NamedTuple):
    """A model in memory.

    Attributes:
        config: of the checkpoint, limited to the context that is served.
        dtype: of activations, and of weights that are not quantised.
        model: its layers.
        quantization: "none", "int8", "int4" or "w8a8".
        cache_dtype: of the KV cache, see BlockShape.
        placement: where it computes.
        pooling: how it makes vectors of prompts; None if it generates text.
        dense: layers behind the pooling.
        draft: the smaller model or head that drafts for it; None for none.
        vocabulary: of a head, what it has not got of the model's, whole; None if it or its rank has all.
    """

    config: ModelConfig
    dtype: torch.dtype
    model: Model
    quantization: str
    cache_dtype: torch.dtype
    placement: Placement[Device]
    pooling: Pooling | None = None
    dense: Sequence[DenseLayer] = ()
    draft: LoadedModel | None = None
    vocabulary: WholeVocabulary | None = None

    @property
    def layer_groups(self) -> LayerGroups:
        """How layers share KV blocks, alike on all ranks."""
        return group_layers(self.config.sliding_windows, self.config.max_model_len)

    @property
    def layer_places(self) -> list[LayerPlace]:
        """Where each layer of this rank keeps its keys and values; none of an encoder does."""
        if not self.model.num_layers:
            return []
        windows, stage = self.config.sliding_windows, self.placement.mesh.stage
        layers = range(len(windows)) if stage is None else share(len(windows), stage.index, stage.count)
        return self.layer_groups.place([windows[i] for i in layers])

    def block_shape(self, block_size: int) -> BlockShape:
        """Return the shape of a KV block of block_size tokens."""
        model = self.model
        pieces = 2 if self.config.latent is None else 1
        num_layers = max((place + 1 for place, _group in self.layer_places), default=0)
        sizes = (num_layers, model.num_kv_heads, block_size, model.head_dim)
        return BlockShape(*sizes, self.cache_dtype, pieces)

    def block_bytes(self, block_size: int) -> int:
        """Return the bytes of a block, in the caches of the model and of the draft model."""
        own = self.block_shape(block_size).num_bytes
        return own if self.draft is None else own + self.draft.block_bytes(block_size)

    @property
    def _embedding_size(self) -> int:
        if self.pooling is None or self._labels:
            return 0
        return self.pooling.dense[-1].out_features if self.pooling.dense else self.config.hidden_size

    @property
    def _judge(self) -> Judge | None:
        return None if self.pooling is None else self.pooling.judge

    @property
    def _labels(self) -> list[str]:
        if self._judge is not None:
            return [YES]
        return [] if self.config.classifier is None else list(self.config.classifier.labels)

    @property
    def info(self) -> ModelInfo:
        """Return the description sent to the engine."""
        config, scorer = self.config, self._judge or self.config.classifier
        return ModelInfo(
            path=config.path,
            architecture=config.architecture,
            dtype=dtype_name(self.dtype),
            vocab_size=config.vocab_size,
            max_model_len=config.max_model_len,
            eos_token_ids=list(config.eos_token_ids),
            num_params=self.model.num_params,
            sliding_window=config.sliding_window,
            group_windows=list(self.layer_groups.windows),
            quantization=self.quantization,
            embedding_size=self._embedding_size,
            normalizes=self.pooling is None or self.pooling.normalizes,
            labels=self._labels,
            score_function="" if scorer is None else scorer.score_function,
            class_function="" if scorer is None else scorer.class_function,
            judges=self._judge is not None,
            pools_all=self.pooling is not None and self.pooling.needs_all,
            has_token_vectors=config.encoder is not None and self._embedding_size > 0 and not self.dense,
        )
