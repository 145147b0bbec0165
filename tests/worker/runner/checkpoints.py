"""A tiny Llama checkpoint made from a seed, without transformers."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB = 320
HIDDEN = 64
INTERMEDIATE = 96
NUM_LAYERS = 2
NUM_HEADS = 4
NUM_KV_HEADS = 2
HEAD_DIM = 16
MAX_LEN = 192
EOS = 2


def write_tiny_llama(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    poisoned_token: int | None = None,
    num_layers: int = NUM_LAYERS,
    is_tied: bool = False,
) -> Path:
    """Write all files of a checkpoint; `poisoned_token` gets NaN as its embedding, a tied head none."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    changes = {"num_hidden_layers": num_layers, "tie_word_embeddings": is_tied}
    (folder / "config.json").write_text(json.dumps(_config(dtype) | changes))
    weights = _weights(num_layers)
    if is_tied:
        del weights["lm_head.weight"]
    if poisoned_token is not None:
        weights["model.embed_tokens.weight"][poisoned_token] = torch.nan
    save_file(
        {name: weight.to(dtype).contiguous() for name, weight in weights.items()},
        folder / "model.safetensors",
    )
    return folder


def tokenizer() -> Tokenizer:
    """Ids 0 to 4 are special, one for each byte follows; the model has more ids than that."""
    special = ["<pad>", "<bos>", "<eos>", "<think>", "</think>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*special, *alphabet])}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(special)
    return made


def _config(dtype: torch.dtype) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": MAX_LEN,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": EOS,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def _weights(num_layers: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(11)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * 2 * columns**-0.5

    weights = {
        "model.embed_tokens.weight": matrix(VOCAB, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": matrix(VOCAB, HIDDEN),
    }
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": torch.ones(HIDDEN),
            prefix + "post_attention_layernorm.weight": torch.ones(HIDDEN),
            prefix + "self_attn.q_proj.weight": matrix(NUM_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.k_proj.weight": matrix(NUM_KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.v_proj.weight": matrix(NUM_KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.o_proj.weight": matrix(HIDDEN, NUM_HEADS * HEAD_DIM),
            prefix + "mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            prefix + "mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            prefix + "mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE),
        }
    return weights
