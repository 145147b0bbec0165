"""Have GGUF files the same perplexity here, in llama.cpp, and by the numbers that the gguf package reads?

    python -m benchmarks.compare.perplexity ROOT [--model DIR] [--kinds f16,q8_0] [--conversations 100]

ROOT is the folder of `benchmarks.compare setup ROOT --peers llamacpp`. The model, the demo model unless DIR
says else, is written as GGUF files there; its tokenizer must be the demo model's, as the texts are those of
benchmarks/perplexity.py. "numbers" are the weights that the gguf package computes of a file, in transformers
and float32: what a file is worth without any rounding of activations. Each cell is the perplexity of all
tokens, and of those of answers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.compare.engines.llama_cpp import LlamaCpp
from benchmarks.compare.gguf_export import LAYER_NAMES, MODEL_NAMES, gguf_path
from benchmarks.perplexity import DEMO_MODEL, Scorer, Text, perplexity_of, unseen_texts

KINDS = ("f16", "q8_0", "q6_k", "q4_k_m", "q4_0")


class Peer(NamedTuple):
    """llama.cpp, and where it was set up."""

    engine: LlamaCpp
    root: Path

    def losses(self, path: Path, texts: Sequence[Text]) -> list[torch.Tensor]:
        """Return what llama.cpp loses on each text's tokens behind the first."""
        words = [self.engine.python(self.root), "-m", "benchmarks.compare.llama_losses", str(path)]
        sent = json.dumps([text.tokens.tolist() for text in texts])
        environment = {**os.environ, **self.engine.environment(self.root)}
        done = subprocess.run(words, input=sent, check=True, capture_output=True, text=True, env=environment)
        return [torch.tensor(losses) for losses in json.loads(done.stdout)]


def weights_of(path: Path, config: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights of a GGUF file by their Hugging Face names, float32, by the checkpoint's config."""
    import gguf

    names = {new: old for old, new in {**LAYER_NAMES, **MODEL_NAMES}.items()}
    heads = {}
    if config["model_type"] == "llama":
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for tensor in gguf.GGUFReader(path).tensors:
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy()).float()
        start, _, last = tensor.name.removesuffix(".weight").rpartition(".")
        if last in heads:
            # Pairs that turn are neighbours in the file.
            values = values.view(heads[last], -1, 2, values.shape[1]).transpose(1, 2).reshape(values.shape)
        prefix = f"{start.replace('blk', 'model.layers')}." if start else ""
        yield f"{prefix}{names[last]}.weight", values


def numbers_losses(model: Path, path: Path, texts: Sequence[Text]) -> list[torch.Tensor]:
    """Return what transformers loses with the numbers of a file."""
    from transformers import AutoConfig, AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model), dtype=torch.float32)
    weights = dict(weights_of(path, json.loads((model / "config.json").read_text())))
    left = reference.load_state_dict(weights, strict=False)
    assert left.unexpected_keys == [], left
    assert left.missing_keys in ([], ["lm_head.weight"]), left
    reference.eval()

    def losses(tokens: torch.Tensor) -> torch.Tensor:
        logits = reference(tokens[None].long()).logits[0, :-1]
        return torch.nn.functional.cross_entropy(logits, tokens[1:].long(), reduction="none")

    return [losses(text.tokens) for text in texts]


def _in_root(root: Path, model: Path) -> Path:
    """Copy a checkpoint to where its GGUF files will lie; return the copy."""
    target = root / "models" / model.name
    if not target.exists():
        shutil.copytree(model, target)
    return target


def main() -> None:
    """Print a table, a line per kind of file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("--model", type=Path, default=DEMO_MODEL)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--conversations", type=int, default=100)
    options = parser.parse_args()
    model = _in_root(options.root, options.model)
    texts = list(unseen_texts(model, options.conversations))
    num_answers = sum(int(text.is_answer.sum()) for text in texts)
    print(f"{sum(len(text.tokens) - 1 for text in texts)} tokens, {num_answers} of answers")
    print("| file | numbers | llama.cpp | bfloat16 | w8a8 | float32 |")
    print(f"{'| --- ' * 6}|")
    for kind in options.kinds.split(","):
        print(_line(options.root, model, kind, texts), flush=True)


def _line(root: Path, model: Path, kind: str, texts: Sequence[Text]) -> str:
    """Write a kind of file, and score it in every way."""
    peer, path = Peer(LlamaCpp(kind), root), gguf_path(model, kind)
    peer.engine.prepare(root, model, root / "perplexity.log")
    found = [
        perplexity_of(texts, numbers_losses(model, path, texts)),
        perplexity_of(texts, peer.losses(path, texts)),
        Scorer(path, "none").perplexity(texts),
        Scorer(path, "w8a8").perplexity(texts),
        Scorer(path, "none", torch.float32).perplexity(texts),
    ]
    cells = [f"{each.all_tokens:.5f}, {each.answers:.5f}" for each in found]
    return f"| {kind} | {' | '.join(cells)} |"


if __name__ == "__main__":
    with torch.inference_mode():
        main()
