"""What benchmarks.gpu_embeddings compares with: transformers' BertModel, or the same computed by torch.

Both as sentence-transformers calls a model: sorted by length, some sentences at a time, padded, with torch's
scaled_dot_product_attention, then the mean over what is no padding, at length 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from benchmarks.embedding_shapes import Shape

EPS = 1e-12
States = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Last hidden states [B, L, H] of token ids and a mask, int64 [B, L] each."""


def open_peer(folder: Path, shape: Shape, dtype: torch.dtype, device: torch.device) -> tuple[str, States]:
    """Return the peer's name, and the model that a checkpoint holds."""
    if find_spec("transformers") is None:
        return "torch", PaddedBert(load_file(folder / "model.safetensors"), shape, dtype, device)
    from transformers import BertModel

    options = {"dtype": dtype, "add_pooling_layer": False, "attn_implementation": "sdpa"}
    model = BertModel.from_pretrained(folder, **options).eval().to(device)
    return "transformers", lambda ids, mask: model(ids, attention_mask=mask).last_hidden_state


class PaddedBert:
    """BertModel in plain torch, for machines without transformers."""

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], shape: Shape, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._tensors = {name: tensor.to(device, dtype) for name, tensor in tensors.items()}
        self._shape = shape

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """See States."""
        tables = self._tensors
        x = F.embedding(ids, tables["embeddings.word_embeddings.weight"])
        x = x + tables["embeddings.token_type_embeddings.weight"][0]
        x = x + tables["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = self._norm("embeddings.LayerNorm", x)
        seen = mask.bool()[:, None, None]
        for i in range(self._shape.num_layers):
            x = self._layer(f"encoder.layer.{i}", x, seen)
        return x

    def _layer(self, name: str, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        heads = (*x.shape[:2], self._shape.num_heads, -1)
        q, k, v = (
            self._linear(f"{name}.attention.self.{part}", x).view(heads).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).reshape(x.shape)
        attended = self._linear(f"{name}.attention.output.dense", attended)
        x = self._norm(f"{name}.attention.output.LayerNorm", attended + x)
        inner = F.gelu(self._linear(f"{name}.intermediate.dense", x))
        return self._norm(f"{name}.output.LayerNorm", self._linear(f"{name}.output.dense", inner) + x)

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"])

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]
        return F.layer_norm(x, weight.shape, weight, bias, EPS)


@torch.inference_mode()
def embed(
    states: States, sentences: list[list[int]], batch_size: int, device: torch.device
) -> npt.NDArray[np.float32]:
    """Return the vectors of sentences, float32 [n, H], computed so many at a time."""
    order, found = sorted(range(len(sentences)), key=lambda i: -len(sentences[i])), []
    for first in range(0, len(order), batch_size):
        batch = [sentences[i] for i in order[first : first + batch_size]]
        lengths = torch.tensor([len(sentence) for sentence in batch])
        ids = torch.zeros(len(batch), len(batch[0]), dtype=torch.long)
        for row, sentence in enumerate(batch):
            ids[row, : len(sentence)] = torch.tensor(sentence)
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long().to(device)
        hidden = states(ids.to(device), mask).float()
        means = (hidden * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        found.append(F.normalize(means, dim=1))
    vectors = torch.cat(found).cpu().numpy()
    return vectors[np.argsort(order)]
