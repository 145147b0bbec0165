"""The interface between the model runner and a model of any architecture."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.device.workspace import Workspace
from splitserve.worker.kv_cache.layout import KVCache
from splitserve.worker.layers.adapters.adapters import Adapters


class Model(Protocol):
    """A language model with its weights; single-threaded.

    Attributes:
        num_layers: number of KV caches it needs, one per layer of this stage; 0 for an encoder.
        num_kv_heads, head_dim: shape of each token's key and value, or of the row that is both, in every
            layer, on this rank.
        num_params: parameter count, tied weights counted once.
        workspace: its activation buffers.
        adapters: where adapters change it; None if there are none.
        is_recordable: a forward pass can be recorded: it runs the same kernels on the same memory for other
            tokens in as many rows.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_params: int
    workspace: Workspace
    adapters: Adapters | None
    is_recordable: bool

    def forward(
        self,
        token_ids: torch.Tensor,
        meta: AttentionMetadata,
        kv_caches: Iterable[KVCache],
        outputs: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Run T tokens of any mix of rows through all layers, or the layers of this pipeline stage.

        Args:
            token_ids: int32 [T], each below the vocabulary size.
            meta: where each token stands; positions are below the config's max_model_len.
            kv_caches: one per layer, written for these tokens. Each is taken only after the layers before it
                have enqueued their work, since its blocks may still be in transit until then.
            outputs: int32 or int64 [S], S >= 1, the tokens whose final hidden states are wanted; None for
                all T. Other tokens are dropped after the last layer's attention.

        Returns:
            Final hidden states [S, H] in the model dtype, in a buffer that the next call overwrites; None on
            stages other than the last.
        """

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Return fp32 logits [S, V] of hidden [S, H], in a buffer that the next call overwrites.

        All ranks of the last stage call it; None on those that do not sample. Of a model with labels: the
        number of each, [S, L], of pooled states.
        """
