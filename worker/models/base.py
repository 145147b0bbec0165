"""What the model runner asks of a model, whatever its architecture."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.device.workspace import Workspace
from splitserve.worker.kv_cache.layout import KVCache


class Model(Protocol):
    """A decoder-only language model with its weights; one thread only.

    Attributes:
        num_layers: KV caches it needs, one per layer of this stage.
        num_kv_heads, head_dim: shape of each token's key and value in every layer, on this rank.
        num_params: numbers it was trained with, tied weights counted once.
        workspace: its activations' buffers. All that a pass computes on its way goes through kernels and lies
            there, so that the pass can be recorded.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_params: int
    workspace: Workspace

    def forward(
        self,
        token_ids: torch.Tensor,
        meta: AttentionMetadata,
        kv_caches: Iterable[KVCache],
        outputs: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Run T tokens of any mix of rows through all layers, or those of this stage of a pipeline.

        Args:
            token_ids: int32 [T], each below the vocabulary size.
            meta: where each token stands; positions are below the config's max_model_len.
            kv_caches: one per layer, written for these tokens. Each is asked for once the layers before have
                enqueued their work: its blocks may be on their way until then.
            outputs: int32 or int64 [S], S >= 1, the tokens whose final hidden states are wanted; None for
                all T. The others end with the last layer's attention.

        Returns:
            Final hidden states [S, H] in the model dtype, in a buffer that the next call overwrites; None on
            stages that hand their activations on.
        """

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Return fp32 logits [S, V] of hidden [S, H], in a buffer that the next call overwrites.

        All ranks of the last stage call it; None on those that do not sample.
        """
