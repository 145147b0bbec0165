"""How is a random model written in the Hugging Face layout, with a tokenizer whose every id has a text?

    python -m benchmarks.compare.checkpoint FOLDER

The name of FOLDER is that of a shape, of benchmarks.compare.shapes.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from benchmarks.compare.shapes import SHAPES, Shape
from training.tokenizer import save_tokenizer, train_tokenizer

CORPUS_BYTES = 12_000_000
END_OF_TEXT_ID, END_OF_TURN_ID, PAD_ID = 0, 2, 3
# As models are initialised before training: activations keep a sane size through all layers.
WEIGHT_STD = 0.02


def write_checkpoint(folder: Path, shape: Shape, seed: int = 0) -> None:
    """Write config, bf16 weights and tokenizer of a shape into a folder, which is made if need be.

    config.json comes last: a folder that has one is complete.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(shape)
    save_tokenizer(tokenizer, folder)
    weights = random_weights(shape, seed)
    # A row of zeros makes a logit of zero, which is never the largest: greedy output is whole text, always.
    weights["model.embed_tokens.weight"][textless_ids(tokenizer)] = 0
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    generation = {"eos_token_id": END_OF_TURN_ID, "pad_token_id": PAD_ID, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1))
    (folder / "config.json").write_text(json.dumps(config(shape), indent=1))


def config(shape: Shape) -> dict[str, Any]:
    """Return the contents of config.json; rope under its old and its new name."""
    names = {
        "llama": "LlamaForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
        "qwen3_moe": "Qwen3MoeForCausalLM",
    }
    experts: dict[str, Any] = {}
    if shape.experts is not None:
        experts = {
            "num_experts": shape.experts.total,
            "num_experts_per_tok": shape.experts.chosen,
            "moe_intermediate_size": shape.experts.size,
            "norm_topk_prob": True,
        }
    return {
        "architectures": [names[shape.architecture]],
        "model_type": shape.architecture,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "rope_theta": shape.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "bos_token_id": END_OF_TEXT_ID,
        "eos_token_id": END_OF_TURN_ID,
        "pad_token_id": PAD_ID,
        **experts,
    }


def random_weights(shape: Shape, seed: int) -> dict[str, torch.Tensor]:
    """Return bf16 tensors by their Hugging Face names: matrices drawn from a normal, norms of ones."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int) -> torch.Tensor:
        return (torch.randn(*size, generator=generator) * WEIGHT_STD).to(torch.bfloat16)

    weights = {"model.embed_tokens.weight": draw(shape.vocab_size, shape.hidden_size)}
    for layer in range(shape.num_layers):
        for name, size in layer_sizes(shape).items():
            tensor = draw(*size) if len(size) == 2 else torch.ones(size, dtype=torch.bfloat16)
            weights[f"model.layers.{layer}.{name}.weight"] = tensor
    weights["model.norm.weight"] = torch.ones(shape.hidden_size, dtype=torch.bfloat16)
    return weights


def layer_sizes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Return the size of each tensor of a layer, matrices as [out, in]."""
    hidden, wide = shape.hidden_size, shape.intermediate_size
    query, key = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    sizes: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (key, hidden),
        "self_attn.v_proj": (key, hidden),
        "self_attn.o_proj": (hidden, query),
        "post_attention_layernorm": (hidden,),
    }
    if shape.experts is None:
        sizes |= _mlp_sizes("mlp", hidden, wide)
    else:
        sizes["mlp.gate"] = (shape.experts.total, hidden)
        for expert in range(shape.experts.total):
            sizes |= _mlp_sizes(f"mlp.experts.{expert}", hidden, shape.experts.size)
    if shape.architecture != "llama":
        sizes |= {"self_attn.q_norm": (shape.head_dim,), "self_attn.k_norm": (shape.head_dim,)}
    return sizes


def _mlp_sizes(name: str, hidden: int, wide: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.gate_proj": (wide, hidden),
        f"{name}.up_proj": (wide, hidden),
        f"{name}.down_proj": (hidden, wide),
    }


def make_tokenizer(shape: Shape) -> Tokenizer:
    """Train a tokenizer on the standard library and fill it up with words until every id has a text.

    Without a text, a token would reach no client, and a server that sends less would look faster.
    """
    return fill_vocabulary(train_tokenizer(corpus(), shape.tokenizer_size), shape.vocab_size)


def fill_vocabulary(tokenizer: Tokenizer, size: int) -> Tokenizer:
    """Return a tokenizer with so many ids; those that it did not have are words that hardly any text has."""
    state = json.loads(tokenizer.to_str())
    vocab = state["model"]["vocab"]
    # An added token keeps its id only if the model has it as well.
    vocab |= {token["content"]: token["id"] for token in state["added_tokens"]}
    taken = set(vocab.values())
    vocab |= {f"Ġ~{i}~": i for i in range(size) if i not in taken}
    return Tokenizer.from_str(json.dumps(state))


def textless_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that are no whole text by themselves: control tokens, and parts of characters."""
    texts = tokenizer.decode_batch([[i] for i in range(tokenizer.get_vocab_size())])
    return [i for i, text in enumerate(texts) if not text or "\ufffd" in text]


def corpus() -> Iterator[str]:
    """Yield Python's own source files, which every machine with this program has, up to CORPUS_BYTES."""
    num_bytes = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts:
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        num_bytes += len(text)
        yield text
        if num_bytes > CORPUS_BYTES:
            return


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", type=Path, help=f"ends with {', '.join(SHAPES)}")
    folder = parser.parse_args(arguments).folder
    if folder.name not in SHAPES:
        parser.error(f"the name of the folder must be one of {', '.join(SHAPES)}, got {folder.name!r}")
    write_checkpoint(folder, SHAPES[folder.name])


if __name__ == "__main__":
    main()
