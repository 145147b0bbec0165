"""Checkpoint directories with tiny tokenizers of the kinds in use, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "Hello world, the quick brown fox jumps over the lazy dog. <think> what if? </think>",
    "user assistant system tool: äöü ß 你好 世界 🙂 naïve café im_start im_end end start",
    "one two three four five six seven eight nine ten <|",
]

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level() -> Tokenizer:
    """GPT-2's and Qwen's kind, with ChatML tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=380, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    plain = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    return tokenizer


def with_bos() -> Tokenizer:
    """Llama 3's kind: byte-level with a post-processor that adds BOS."""
    tokenizer = byte_level()
    special = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    bos_id = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos_id)]
            ),
        ]
    )
    return tokenizer


def _piece_model() -> Tokenizer:
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "[INST]": 3, "[/INST]": 4}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for char in dict.fromkeys("▁" + "".join(chr(c) for c in range(33, 127)) + "äöü你好"):
        vocab.setdefault(char, len(vocab))
    merges = []
    for left, right in [
        ("h", "e"),
        ("l", "l"),
        ("he", "ll"),
        ("hell", "o"),
        ("▁", "t"),
        ("▁t", "he"),
        ("▁", "w"),
    ]:
        vocab.setdefault(left + right, len(vocab))
        merges.append((left, right))
    model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def sentencepiece() -> Tokenizer:
    """Llama 2's and Mistral's kind: "▁" for spaces, byte fallback."""
    tokenizer = _piece_model()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def metaspace() -> Tokenizer:
    """The same with a Metaspace pre-tokenizer and decoder."""
    tokenizer = _piece_model()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


def wordpiece() -> Tokenizer:
    """A decoder that only the library can run."""
    vocab = {"[UNK]": 0, "hello": 1, "world": 2, "##s": 3, "the": 4, "##re": 5, ".": 6, "o": 7, "##k": 8}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+|\."), "isolated")
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return tokenizer


KINDS = {
    "byte_level": byte_level,
    "with_bos": with_bos,
    "sentencepiece": sentencepiece,
    "metaspace": metaspace,
    "wordpiece": wordpiece,
}


def write_checkpoint(
    directory: Path,
    tokenizer: Tokenizer | None = None,
    config: dict[str, object] | None = None,
    generation_config: dict[str, object] | None = None,
) -> Path:
    """Write the files of tokenizer and generation, and config.json for the simulation; no weights."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer or byte_level()
    tokenizer.save(str(directory / "tokenizer.json"))
    defaults = {
        "chat_template": CHATML,
        "eos_token": "<|im_end|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(defaults if config is None else config))
    (directory / "generation_config.json").write_text(json.dumps(generation_config or {"temperature": 0.7}))
    model = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 512}
    if (eos_id := tokenizer.token_to_id("<|im_end|>")) is not None:
        model["eos_token_id"] = eos_id
    (directory / "config.json").write_text(json.dumps(model))
    return directory
