"""Tiny random checkpoints of architectures that only the transformers library has layers for."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import torch

from tests.checkpoints import EOS_TOKEN_ID, VOCAB_SIZE, randomise_vectors

_SIZES: dict[str, object] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": EOS_TOKEN_ID,
    "pad_token_id": 2,
    "initializer_range": 0.25,
}
_GPT: dict[str, object] = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 256,
    "bos_token_id": 0,
    "eos_token_id": EOS_TOKEN_ID,
    "initializer_range": 0.25,
}
_OPT: dict[str, object] = {"ffn_dim": 96, "word_embed_proj_dim": 64, "init_std": 0.25}
_WINDOWS: dict[str, object] = {"sliding_window": 24}
# By model_type; what differs from _SIZES, or from _GPT where its fields have those names.
SERVED: dict[str, dict[str, object]] = {
    "arcee": {},
    "biogpt": {},
    "codegen": {**_GPT, "rotary_dim": 8},
    "cwm": {**_WINDOWS, "head_dim": 16},
    "ernie4_5": {"head_dim": 16},
    "exaone4": {**_WINDOWS, "sliding_window_pattern": 2, "num_hidden_layers": 3},
    "gemma": {"head_dim": 16},
    "gpt_bigcode": _GPT,
    "gpt_neox": {},
    "gptj": {**_GPT, "rotary_dim": 8},
    "helium": {"head_dim": 16},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hyperclovax": {"head_dim": 16},
    "jais2": {},
    "ministral": {**_WINDOWS, "head_dim": 16},
    "ministral3": {"head_dim": 16},
    "modernbert-decoder": {"num_hidden_layers": 3, "local_attention": 24},
    "nanochat": {},
    "nemotron": {"head_dim": 16},
    "olmo": {},
    "opt": _OPT,
    "persimmon": {},
    "phi": {"intermediate_size": 128},
    "stablelm": {},
    "vaultgemma": {**_WINDOWS, "head_dim": 16},
    # Native layers exist, and the library's are asked for.
    "gemma2": {**_WINDOWS, "head_dim": 16},
    "llama": {},
    "olmo2": {},
    "qwen3": {"head_dim": 16},
}


@cache
def make_model(model_type: str) -> torch.nn.Module:
    """Return the library's model in float32, its weights always the same."""
    import transformers

    fields = SERVED[model_type]
    sizes = {} if "n_embd" in fields else _SIZES
    config = transformers.AutoConfig.for_model(model_type, **{**sizes, **fields})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        )
        randomise_vectors(model)
    return model.eval()


def write_checkpoint(name: str, path: Path, **changed: object) -> Path:
    """Write a checkpoint of a model, with some fields of config.json changed; return its directory."""
    make_model(name).save_pretrained(path)  # type: ignore[operator]
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changed}))
    return path
