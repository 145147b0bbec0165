"""The demo model, or what drafts for it, in the sizes of a larger model: the same text at its price.

    python -m benchmarks.enlarged_demo FOLDER [--source DIR] [--size demo|medium|quarter|head] [--layers N]

"medium" has the sizes of Qwen3-0.6B, without its norms of queries and keys. Two sizes draft for it: "quarter"
has a quarter of its weights, for --source of training.distill; "head" is an EAGLE-3 head that knows 32,000
tokens, as published ones do, for --source of training.train_eagle3. "demo" keeps the source's widths, for
more --layers. Layers behind those of the source add nothing.

A width of the source is a part of the larger one. What reads only zeros or adds nothing is random, what would
add something is zero, and all factors are powers of two: the logits are those of the source but for rounding.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from benchmarks.compare.checkpoint import WEIGHT_STD, fill_vocabulary, layer_sizes
from benchmarks.compare.shapes import SHAPES, Shape, shape_of
from benchmarks.perplexity import DEMO_MODEL

MEDIUM = SHAPES["medium"]._replace(architecture="llama", context=2048, rope_theta=1e4)
SIZES = {
    "medium": MEDIUM,
    "quarter": MEDIUM._replace(
        hidden_size=512, num_layers=18, num_heads=8, num_kv_heads=4, intermediate_size=1536
    ),
    "head": MEDIUM._replace(num_layers=1),
}
HEAD_VOCAB_SIZE = 32000
EMBEDDING = "model.embed_tokens.weight"
# One place behind the source's width holds the same in every layer and for every token, and the last norm
# makes it large: tokens beyond the source's get a logit of about -1,000 of it, all others the same small one.
MARK, MARK_SCALE, UNKNOWN = 2.0**-8, 2.0**16, -4.0
# Matrices that keep their zeros: two add to the hidden state, and keys of zero say nothing.
ADDING = ("self_attn.o_proj", "mlp.down_proj", "self_attn.k_proj")


class Enlarging:
    """Puts the tensors of a Llama, or of a head, into larger ones.

    Args:
        old, new: sizes. A head's size is once or four times the old one; so is the hidden size; and as many
            query heads share a key head.
    """

    def __init__(self, old: Shape, new: Shape) -> None:
        self._old, self._new = old, new
        self._widening, self._stretch = new.hidden_size // old.hidden_size, new.head_dim // old.head_dim
        assert {self._widening, self._stretch} <= {1, 4}, "roots of other factors are no powers of two"
        assert new.num_heads * old.num_kv_heads == old.num_heads * new.num_kv_heads
        self._sizes = layer_sizes(new)
        self._generator = torch.Generator().manual_seed(0)

    def table(self, weight: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """Return an embedding of so many tokens, of which the source knows the first."""
        known, width = weight.shape
        table = torch.zeros(num_tokens, self._new.hidden_size, dtype=weight.dtype)
        table[:known, :width] = weight
        if self._widening > 1:
            table[:known, width], table[known:, width] = MARK, UNKNOWN
        return table

    def norm(self, weight: torch.Tensor, mark_scale: float = 0.0) -> torch.Tensor:
        """Return a norm's weight: the mean square of a hidden state is smaller by its zeros."""
        out = torch.zeros(self._new.hidden_size, dtype=weight.dtype)
        out[: len(weight)] = weight / self._widening**0.5
        if self._widening > 1:
            out[len(weight)] = mark_scale
        return out

    def norm_eps(self, eps: float) -> float:
        """Return the norms' epsilon, less what the mark adds to the mean square."""
        return eps / self._widening - (MARK**2 / self._new.hidden_size if self._widening > 1 else 0.0)

    def fused(self, weight: torch.Tensor) -> torch.Tensor:
        """Return a head's matrix over several hidden states; the mark of the first goes through it."""
        old, new = self._old.hidden_size, self._new.hidden_size
        out = torch.zeros(new, weight.shape[1] * self._widening, dtype=weight.dtype)
        out[:old, _side_by_side(weight.shape[1], old, new)] = weight
        if self._widening > 1:
            out[old, old] = 1
        return out

    def matrix(self, part: str, weight: torch.Tensor) -> torch.Tensor:
        """Return a layer's matrix, of a part such as "mlp.up_proj"; it may read several widths at once."""
        old, new = self._old, self._new
        is_adding = part in ("self_attn.o_proj", "mlp.down_proj")
        rows, columns = torch.arange(len(weight)), torch.arange(weight.shape[1])
        if not is_adding:
            columns = _side_by_side(weight.shape[1], old.hidden_size, new.hidden_size)
        if part in ("self_attn.q_proj", "self_attn.k_proj"):
            rows = self._turned(len(weight))
        elif part == "self_attn.v_proj":
            rows = _side_by_side(len(weight), old.head_dim, new.head_dim)
        elif part == "self_attn.o_proj":
            columns = _side_by_side(weight.shape[1], old.head_dim, new.head_dim)
        out = self.filler(part, 1 if is_adding else weight.shape[1] // old.hidden_size)
        # Scores are divided by the root of a head's size.
        out[rows[:, None], columns] = weight * (self._stretch**0.5 if part == "self_attn.q_proj" else 1)
        return out

    def filler(self, part: str, num_widths: int = 1) -> torch.Tensor:
        """Return a layer's matrix, or norm, that adds nothing and reads so many widths."""
        size = self._sizes[part]
        if len(size) == 1:
            return torch.ones(size, dtype=torch.bfloat16)
        rows, columns = size[0], size[1] * num_widths
        if part in ADDING:
            return torch.zeros(rows, columns, dtype=torch.bfloat16)
        return (torch.randn(rows, columns, generator=self._generator) * WEIGHT_STD).to(torch.bfloat16)

    def _turned(self, count: int) -> torch.Tensor:
        """Return where rows of queries or keys go: each pair to one that is turned by the same angles."""
        size = self._new.head_dim
        pairs = torch.arange(self._old.head_dim // 2) * self._stretch
        heads = torch.arange(count // self._old.head_dim) * size
        return (heads[:, None] + torch.cat([pairs, pairs + size // 2])).flatten()


def _side_by_side(count: int, old: int, new: int) -> torch.Tensor:
    """Return where `count` places go that are parts of `old` places each, which become `new` ones."""
    return (torch.arange(count // old)[:, None] * new + torch.arange(old)).flatten()


def enlarged(
    enlarging: Enlarging, weights: dict[str, torch.Tensor], old: Shape, new: Shape
) -> dict[str, torch.Tensor]:
    """Return the tensors of a model or head in their new sizes, and those of further layers."""
    out: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        if name == EMBEDDING:
            out[name] = enlarging.table(weight, new.vocab_size)
        elif name == "fc.weight":
            out[name] = enlarging.fused(weight)
        elif weight.ndim == 1:
            is_last = name in ("model.norm.weight", "norm.weight")
            out[name] = enlarging.norm(weight, MARK_SCALE if is_last else 0.0)
        else:
            out[name] = enlarging.matrix(".".join(name.split(".")[-3:-1]), weight)
    for layer in range(old.num_layers, new.num_layers):
        for part in layer_sizes(new):
            out[f"model.layers.{layer}.{part}.weight"] = enlarging.filler(part)
    return out


def head_vocabulary(enlarging: Enlarging) -> dict[str, torch.Tensor]:
    """Return the output head of an EAGLE-3 head, for the first tokens of the model's vocabulary."""
    known = load_file(DEMO_MODEL / "model.safetensors")[EMBEDDING]
    is_known = torch.zeros(MEDIUM.vocab_size, dtype=torch.bool)
    is_known[:HEAD_VOCAB_SIZE] = True
    return {
        "lm_head.weight": enlarging.table(known, HEAD_VOCAB_SIZE),
        "d2t": torch.zeros(HEAD_VOCAB_SIZE, dtype=torch.int64),
        "t2d": is_known,
    }


def write(source: Path, folder: Path, size: str, num_layers: int | None) -> int:
    """Write the enlarged source into a folder, which is made if need be; returns how many weights it has."""
    config = json.loads((source / "config.json").read_text())
    old = shape_of(config)
    new = SIZES.get(size, old)
    new = new._replace(num_layers=num_layers or new.num_layers)
    enlarging = Enlarging(old, new)
    weights = enlarged(enlarging, load_file(source / "model.safetensors"), old, new)
    if size == "head":
        weights |= head_vocabulary(enlarging)
        config["draft_vocab_size"] = HEAD_VOCAB_SIZE
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer_config.json", "generation_config.json"):
        if (source / name).exists():
            shutil.copy(source / name, folder / name)
    if (source / "tokenizer.json").exists():
        tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
        fill_vocabulary(tokenizer, new.vocab_size).save(str(folder / "tokenizer.json"))
    config |= {
        "vocab_size": new.vocab_size,
        "hidden_size": new.hidden_size,
        "intermediate_size": new.intermediate_size,
        "num_hidden_layers": new.num_layers,
        "num_attention_heads": new.num_heads,
        "num_key_value_heads": new.num_kv_heads,
        "head_dim": new.head_dim,
        "rms_norm_eps": enlarging.norm_eps(config["rms_norm_eps"]),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return sum(weight.numel() for weight in weights.values() if weight.ndim == 2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", type=Path, default=DEMO_MODEL)
    parser.add_argument("--size", choices=["demo", *SIZES], default="demo")
    parser.add_argument("--layers", type=int, help="of the source and behind them, if not those of the size")
    options = parser.parse_args()
    count = write(options.source, options.folder, options.size, options.layers)
    print(f"{options.folder}: {count:,} weights")


if __name__ == "__main__":
    main()
