"""Which tensor of a GGUF file is which tensor of the model's checkpoint in Hugging Face layout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,4})\.([a-z_]+)\.(weight|bias)")
_ROOT = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LLAMA = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
MIXTRAL = {
    **LLAMA,
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps.weight": "block_sparse_moe.experts.{}.w1.weight",
    "ffn_up_exps.weight": "block_sparse_moe.experts.{}.w3.weight",
    "ffn_down_exps.weight": "block_sparse_moe.experts.{}.w2.weight",
}
QWEN3 = {**LLAMA, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
QWEN3_MOE = {
    **QWEN3,
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps.weight": "mlp.experts.{}.gate_proj.weight",
    "ffn_up_exps.weight": "mlp.experts.{}.up_proj.weight",
    "ffn_down_exps.weight": "mlp.experts.{}.down_proj.weight",
}
GPT_OSS = {
    **LLAMA,
    "post_attention_norm": "post_attention_layernorm",
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
    **{
        f"ffn_{part}_exps.{kind}": f"mlp.experts.{part}_proj{ending}"
        for part in ("gate", "up", "down")
        for kind, ending in (("weight", ""), ("bias", "_bias"))
    },
}
PHI3 = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA2 = {
    **LLAMA,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GEMMA3 = {**GEMMA2, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}


class Placed(NamedTuple):
    """Where a tensor belongs.

    Attributes:
        name: in Hugging Face layout; with {} in the place of its number if it holds those of all experts.
        is_norm: it is the weight of a norm.
    """

    name: str
    is_norm: bool


def place(name: str, blocks: Mapping[str, str]) -> Placed | None:
    """Return where a tensor belongs; None if the model has none of this name.

    Args:
        name: in the GGUF file.
        blocks: names within a layer, of the architecture, without "weight" or "bias" where it has both.
    """
    if name in _ROOT:
        return Placed(_ROOT[name], name == "output_norm.weight")
    match = _BLOCK.fullmatch(name)
    if match is None:
        return None
    whole = blocks.get(f"{match[2]}.{match[3]}")
    if whole is not None:
        return Placed(f"model.layers.{match[1]}.{whole}", is_norm=False)
    if match[2] not in blocks:
        return None
    inner = blocks[match[2]]
    return Placed(f"model.layers.{match[1]}.{inner}.{match[3]}", inner.endswith("norm"))
