"""The least a simulated engine and a real api-frontend need: config.json and a tokenizer of bytes."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers


def write_tiny_model(directory: Path) -> None:
    """Write both files into a new directory."""
    directory.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<unk>": 0, "<eos>": 1, **{piece: number + 2 for number, piece in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": len(vocab),
        "max_position_embeddings": 512,
        "eos_token_id": 1,
    }
    (directory / "config.json").write_text(json.dumps(config))
