"""What quantised weights cost in quality: perplexity of the demo model on texts it was not trained on.

    python -m benchmarks.perplexity [--conversations N] [--model DIR]

The conversations come from the generator of the training text with another seed. DIR must be a checkpoint
with the demo model's tokenizer.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.settings.shared import QUANTIZATIONS
from splitserve.worker.attention.cpu import CpuAttention
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.kv_cache.layout import BlockShape, layer_caches
from splitserve.worker.models.placement import Placement
from splitserve.worker.models.registry import load_model
from training.corpus import conversations
from training.packing import token_weights
from training.tokenizer import render

DEMO_MODEL = Path(__file__).parent.parent / "engine_core" / "demo_model"
# The training used 7.
SEED = 20261120
BLOCK_SIZE = 16
MAX_TOKENS = 1024


class Text(NamedTuple):
    """One conversation; `is_answer` says which of its tokens the assistant wrote."""

    tokens: torch.Tensor
    is_answer: torch.Tensor


class Perplexity(NamedTuple):
    """Of the tokens that the assistant wrote, and of all but the first of a text."""

    answers: float
    all_tokens: float


class Scorer:
    """A model in one form, and a KV cache for one conversation.

    Args:
        model: a checkpoint.
        quantization: of its matrices.
        dtype: of activations and KV cache, and of matrices that are not quantized.
    """

    def __init__(self, model: Path, quantization: str, dtype: torch.dtype = torch.bfloat16) -> None:
        backend = CpuAttention()
        config = read_model_config(model)
        self._model = load_model(
            config, dtype, Placement(CpuDevice(), backend), lambda loaded, total: None, quantization
        )
        sizes = (self._model.num_layers, self._model.num_kv_heads, BLOCK_SIZE, self._model.head_dim)
        cache = backend.allocate(BlockShape(*sizes, dtype), MAX_TOKENS // BLOCK_SIZE)
        self._caches = layer_caches(cache)

    def perplexity(self, texts: Sequence[Text]) -> Perplexity:
        """Score every text from its beginning."""
        return perplexity_of(texts, [self._losses(text.tokens) for text in texts])

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return fp32 [T, V] of int32 [T], at most MAX_TOKENS, in a buffer that the next call overwrites."""
        logits = self._model.compute_logits(self._hidden(tokens))
        assert logits is not None, "one rank has all of the vocabulary"
        return logits

    def _losses(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.logits(tokens)
        return torch.nn.functional.cross_entropy(logits[:-1], tokens[1:].long(), reduction="none")

    def _hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(len(tokens), dtype=torch.int32)
        blocks = torch.arange(-(-len(tokens) // BLOCK_SIZE), dtype=torch.int32)[None]
        lengths = torch.tensor([len(tokens)], dtype=torch.int32)
        starts = torch.tensor([0, len(tokens)], dtype=torch.int32)
        meta = AttentionMetadata(positions, positions, blocks, starts, lengths)
        hidden = self._model.forward(tokens, meta, self._caches)
        assert hidden is not None, "one rank has all layers"
        return hidden


def perplexity_of(texts: Sequence[Text], losses: Sequence[torch.Tensor]) -> Perplexity:
    """Return it from the losses [T - 1] of each text's tokens behind the first."""
    joined = torch.cat(list(losses)).double()
    is_answer = torch.cat([text.is_answer[1:] for text in texts])
    return Perplexity(math.exp(joined[is_answer].mean()), math.exp(joined.mean()))


def unseen_texts(model: Path, count: int) -> Iterator[Text]:
    """That many conversations, each cut to MAX_TOKENS."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    for item in conversations(SEED, count):
        tokens = tokenizer.encode(render(item)).ids[:MAX_TOKENS]
        is_answer = torch.tensor(token_weights(tokens, tokenizer)) == 1
        yield Text(torch.tensor(tokens, dtype=torch.int32), is_answer)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--conversations", type=int, default=300, help="how many (default: 300)")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="checkpoint (default: the demo model)")
    options = parser.parse_args()
    texts = list(unseen_texts(options.model, options.conversations))
    num_answer = sum(int(text.is_answer.sum()) for text in texts)
    print(f"{num_answer} tokens of answers, {sum(len(text.tokens) - 1 for text in texts)} in all")
    plain = Scorer(options.model, "none").perplexity(texts)
    for quantization in QUANTIZATIONS:
        found = Scorer(options.model, quantization).perplexity(texts)
        answers, whole = (f"{a:.4f} ({a / b - 1:+.2%})" for a, b in zip(found, plain, strict=True))
        print(f"{quantization:<5} perplexity of answers {answers}, of all {whole}")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
