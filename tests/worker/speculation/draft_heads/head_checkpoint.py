"""A tiny EAGLE-3 head made from a seed, for the tiny Llama, and what such a head computes, in plain torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from tests.worker.runner.checkpoints import HEAD_DIM, HIDDEN, MAX_LEN, NUM_HEADS, NUM_KV_HEADS, VOCAB

EPS, THETA = 1e-5, 10000.0
DRAFT_VOCAB = 200
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "draft_vocab_size": DRAFT_VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 80,
    "num_hidden_layers": 1,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": NUM_KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": MAX_LEN,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "eagle_aux_hidden_state_layer_ids": [1, 2],
}


def token_ids() -> torch.Tensor:
    """The model's ids of the head's tokens."""
    return torch.arange(DRAFT_VOCAB) + torch.arange(DRAFT_VOCAB) // 2


def head_weights(config: dict[str, Any] = CONFIG, layer: str = "midlayer") -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    inner, width = config["intermediate_size"], len(config["eagle_aux_hidden_state_layer_ids"])

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    def vector() -> torch.Tensor:
        return 1 + 0.2 * torch.randn(HIDDEN, generator=generator)

    return {
        "fc.weight": matrix(HIDDEN, width * HIDDEN),
        "norm.weight": vector(),
        "lm_head.weight": matrix(config["draft_vocab_size"], HIDDEN),
        f"{layer}.hidden_norm.weight": vector(),
        f"{layer}.input_layernorm.weight": vector(),
        f"{layer}.post_attention_layernorm.weight": vector(),
        f"{layer}.self_attn.q_proj.weight": matrix(NUM_HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{layer}.self_attn.k_proj.weight": matrix(NUM_KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{layer}.self_attn.v_proj.weight": matrix(NUM_KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{layer}.self_attn.o_proj.weight": matrix(HIDDEN, NUM_HEADS * HEAD_DIM),
        f"{layer}.mlp.gate_proj.weight": matrix(inner, HIDDEN),
        f"{layer}.mlp.up_proj.weight": matrix(inner, HIDDEN),
        f"{layer}.mlp.down_proj.weight": matrix(HIDDEN, inner),
        "d2t": token_ids() - torch.arange(DRAFT_VOCAB),
        "t2d": torch.isin(torch.arange(VOCAB), token_ids()),
    }


def write_head(folder: Path, weights: dict[str, torch.Tensor] | None = None, **changes: Any) -> Path:
    """Write a checkpoint; `changes` of the fields of its config.json, None leaves one out."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {name: value for name, value in (CONFIG | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(head_weights() if weights is None else weights, folder / "model.safetensors")
    return folder


class Reference:
    """The head of a folder, computed in float32 for one text at a time."""

    def __init__(self, folder: Path, embedding: torch.Tensor) -> None:
        self._config = json.loads((folder / "config.json").read_text())
        stored = load_file(folder / "model.safetensors")
        self._weights = {
            name.replace("layers.0.", "midlayer."): weight.float()
            for name, weight in stored.items()
            if name not in ("d2t", "t2d")
        }
        self._embedding = self._weights.get("embed_tokens.weight", embedding.float())

    def logits(self, states: torch.Tensor, tokens: torch.Tensor, num_more: int = 0) -> torch.Tensor:
        """Return logits of its own vocabulary [P + num_more, V'].

        Args:
            states: [P, ...] of the model, side by side.
            tokens: [P + num_more], the token behind each; the last ones follow the head's own states.
            num_more: see above.
        """
        weights = self._weights
        stream = states.float() @ weights["fc.weight"].T + weights.get("fc.bias", 0.0)
        for i in range(num_more + 1):
            out = self._layer(stream, tokens[: len(stream)])
            if i < num_more:
                stream = torch.cat((stream, out[-1:]))
        return self._norm(out, "norm") @ weights["lm_head.weight"].T

    def _layer(self, stream: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        states = self._norm(stream, "midlayer.hidden_norm")
        pairs = torch.cat((self._norm(self._embedding[tokens], "midlayer.input_layernorm"), states), dim=1)
        residual = states if self._config.get("norm_before_residual") else stream
        residual = residual + self._attention(pairs)
        normed = self._norm(residual, "midlayer.post_attention_layernorm")
        gate, up = (self._times(normed, f"mlp.{name}_proj") for name in ("gate", "up"))
        return residual + self._times(functional.silu(gate) * up, "mlp.down_proj")

    def _attention(self, pairs: torch.Tensor) -> torch.Tensor:
        count = len(pairs)
        q, k, v = (
            self._times(pairs, f"self_attn.{name}_proj").view(count, -1, HEAD_DIM).transpose(0, 1)
            for name in "qkv"
        )
        k, v = (x.repeat_interleave(NUM_HEADS // NUM_KV_HEADS, dim=0) for x in (_turned(k), v))
        out = functional.scaled_dot_product_attention(_turned(q), k, v, is_causal=True)
        return self._times(out.transpose(0, 1).reshape(count, -1), "self_attn.o_proj")

    def _times(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self._weights[f"midlayer.{name}.weight"].T

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(x, (HIDDEN,), self._weights[f"{name}.weight"], EPS)


def _turned(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions from 0 on, of [heads, P, D]."""
    frequencies = THETA ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = torch.outer(torch.arange(x.shape[1]).float(), frequencies).repeat(1, 2)
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()
