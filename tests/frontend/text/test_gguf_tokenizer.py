"""The tokenizer in a GGUF file's metadata encodes and decodes as the model's own does."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from splitserve.engine_core.checkpoint.text_files import check_text_files
from splitserve.engine_core.checkpoint.tokenizer.splits import SPLITS, Split
from splitserve.engine_core.errors import ModelLoadError
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.frontend.text.model_assets import load_model_assets
from splitserve.frontend.text.tokenizer import Tokenizer as OurTokenizer
from tests.engine_core.checkpoint.gguf_writing import Value, embedding, file_bytes, llama

CORPUS = [
    "Hello world, the quick brown fox jumps over the lazy dog. It's 12345 o'clock!",
    "HTTPServer camelCase 你好 世界 naïve café  two  spaces\n\n\tTabs and\r\nlines ... (really?)",
]
TEXTS = [
    *CORPUS,
    "",
    " ",
    "   leading and trailing   ",
    "I'LL we're THEY'VE 3.14159 1000000",
    "e\u0301 A\u030a \u212b",
    "🙂🙂 \u200d \U0001d518\U0001d52b \x00\x7f",
    "<|im_end|> <s> </s> <think>",
    "a/b//c\n/ d!\n\n  \n",
]
TYPES = {"normal": 1, "unknown": 2, "control": 3, "user": 4, "byte": 6}
SPACE = "\u2581"


def write(path: Path, changes: dict[str, Value]) -> Path:
    path.write_bytes(file_bytes(llama(**changes), embedding()))
    return path


def trained(split: Split) -> Tokenizer:
    """A byte-level tokenizer as a model's tokenizer.json describes it."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=split.takes_whole_words))
    if split.is_normalized:
        tokenizer.normalizer = normalizers.NFC()
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split.parts_digits:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), plain])
    elif split.pattern:
        cut = pre_tokenizers.Split(Regex(split.pattern), "isolated")
        inner = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, inner])
    else:
        tokenizer.pre_tokenizer = plain
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS * 4, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens(["<s>", "</s>", "<|im_end|>"])
    tokenizer.add_tokens(["<think>"])
    return tokenizer


def metadata_of(tokenizer: Tokenizer, pre: str) -> dict[str, Value]:
    vocab = tokenizer.get_vocab()
    tokens = sorted(vocab, key=lambda token: vocab[token])
    added = tokenizer.get_added_tokens_decoder()
    types = [
        TYPES["control" if added[i].special else "user"] if i in added else TYPES["normal"]
        for i in range(len(tokens))
    ]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": vocab["<s>"],
        "tokenizer.ggml.eos_token_id": vocab["</s>"],
    }


@pytest.mark.parametrize("pre", SPLITS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_byte_level_tokenizer_encodes_and_decodes_as_the_models_own(
    pre: str, text: str, tmp_path: Path
) -> None:
    split = SPLITS[pre]
    own = trained(split)
    made = OurTokenizer(write(tmp_path / "m.gguf", metadata_of(own, pre)))
    ids = own.encode(text).ids
    assert made.encode(text, add_special_tokens=False, parse_special_tokens=True) == ids
    assert made.decode(ids, skip_special_tokens=False) == own.decode(ids, skip_special_tokens=False)
    begins = [own.token_to_id("<s>")] if split.begins else []
    assert made.encode(text, parse_special_tokens=True) == begins + ids


def test_patterns_cut_texts_as_the_published_ones_do() -> None:
    """Of those that transformers has: its own constants."""
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    for text in TEXTS:
        ours = pre_tokenizers.Split(Regex(SPLITS["qwen2"].pattern), "isolated").pre_tokenize_str(text)
        assert ours == pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated").pre_tokenize_str(text)


def sentencepiece_vocabulary() -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and types of a SentencePiece BPE model: each merge scores less than the last."""
    tokenizer = Tokenizer(models.BPE())
    spelled = [SPACE + text.replace(" ", SPACE) for text in CORPUS]
    trainer = trainers.BpeTrainer(vocab_size=160, show_progress=False)
    tokenizer.train_from_iterator(spelled * 4, trainer)
    letters = sorted({letter for text in spelled for letter in text})
    merged = ["".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *byte_tokens, *dict.fromkeys(merged), *letters]
    scores = [0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)]
    types = [TYPES["unknown"], TYPES["control"], TYPES["control"]] + [TYPES["byte"]] * 256
    return tokens, scores, types + [TYPES["normal"]] * (len(tokens) - len(types))


def merged_as_sentencepiece(text: str, tokens: list[str], scores: list[float]) -> list[int]:
    """Join the neighbours whose union has the best score, the leftmost of equals; bytes for the unknown."""
    ids = {token: i for i, token in enumerate(tokens) if i >= 259}
    pieces = list(text)
    while True:
        pairs = [(-scores[ids[a + b]], i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in ids]
        if not pairs:
            break
        _, i = min(pairs)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    found: list[int] = []
    for piece in pieces:
        found += [ids[piece]] if piece in ids else [3 + byte for byte in piece.encode()]
    return found


@pytest.mark.parametrize("text", [text for text in TEXTS if "<" not in text])
@pytest.mark.parametrize("adds_space", [True, False])
def test_a_sentencepiece_tokenizer_merges_as_sentencepiece_does(
    text: str, adds_space: bool, tmp_path: Path
) -> None:
    tokens, scores, types = sentencepiece_vocabulary()
    changes: dict[str, Value] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": adds_space,
    }
    made = OurTokenizer(write(tmp_path / "m.gguf", changes))
    spelled = (SPACE if adds_space and text else "") + text.replace(" ", SPACE)
    expected = merged_as_sentencepiece(spelled, tokens, scores)
    assert made.encode(text, add_special_tokens=False) == expected
    assert made.encode(text) == [1, *expected]
    assert made.decode(expected) == text


def test_gemmas_runs_of_spaces_are_spelled_as_they_are_looked_up(tmp_path: Path) -> None:
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "  ", "   ", SPACE, "a", SPACE + "a"]
    changes: dict[str, Value] = {
        "general.architecture": "gemma2",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-1000.0] * len(tokens),
        "tokenizer.ggml.token_type": [3, 3, 3, 2, 4, 4, 1, 1, 1],
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.bos_token_id": 2,
    }
    made = OurTokenizer(write(tmp_path / "m.gguf", changes))
    assert made.encode("a   a a") == [2, 7, 5, 7, 8]
    assert made.decode([7, 5, 7, 8]) == "a   a a"


def test_an_end_token_is_added_where_the_file_says_so(tmp_path: Path) -> None:
    changes: dict[str, Value] = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    made = OurTokenizer(write(tmp_path / "m.gguf", changes))
    assert made.encode("ab") == [0, 4, 1]


def test_the_chat_template_and_the_roles_come_with_the_file(tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    path = write(tmp_path / "m.gguf", {"tokenizer.chat_template": template})
    info = ModelInfo(
        path=str(path),
        architecture="LlamaForCausalLM",
        dtype="float32",
        vocab_size=6,
        max_model_len=64,
        eos_token_ids=[1],
        num_params=1,
    )
    assets = load_model_assets(info)
    assert assets.chat_template is not None
    try:
        rendered = assets.chat_template.render([{"role": "user", "content": "ab</s>"}])
    finally:
        assets.chat_template.close()
    assert rendered.token_ids[:2] == [0, 4]
    assert rendered.token_ids[-1] == 5
    assert 1 not in rendered.token_ids


REFUSED: list[tuple[dict[str, Value], str]] = [
    (
        {"tokenizer.ggml.model": "bert"},
        "tokenizer.ggml.model must be gpt2 or llama, got 'bert'.*--assets-dir",
    ),
    ({"tokenizer.ggml.pre": "chatglm-bpe"}, "tokenizer.ggml.pre must be one of gpt-2, .*--assets-dir"),
    ({"tokenizer.ggml.tokens": "abc"}, "tokenizer.ggml.tokens must be a list of texts"),
    ({"tokenizer.ggml.tokens": ["a", "a"]}, "tokenizer.ggml.tokens holds the same text twice"),
    ({"tokenizer.ggml.token_type": [1]}, "tokenizer.ggml.token_type must hold a number for each of 6"),
    ({"tokenizer.ggml.merges": ["a c"]}, "tokenizer.ggml.merges must hold pairs of tokens"),
    ({"tokenizer.ggml.merges": ["ab"]}, "tokenizer.ggml.merges must hold pairs of tokens"),
    ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.scores must hold a number for each of 6"),
    ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [1] * 6}, "scores must hold numbers"),
    ({"tokenizer.ggml.add_bos_token": 1}, "add_bos_token must be true or false"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_a_vocabulary_that_is_not_supported_is_refused_by_name(
    changes: dict[str, Value], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        check_text_files(write(tmp_path / "m.gguf", changes))
