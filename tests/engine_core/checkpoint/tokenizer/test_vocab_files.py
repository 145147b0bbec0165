"""vocab.json with merges.txt, and vocab.txt, give the ids of transformers, or are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    BertTokenizer,
    GPT2Tokenizer,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
    RobertaTokenizer,
)

from splitserve.engine_core.checkpoint.text_files import check_text_files
from splitserve.engine_core.checkpoint.tokenizer.byte_pairs import ranked
from splitserve.engine_core.checkpoint.tokenizer.splits import GPT2
from splitserve.engine_core.errors import ModelLoadError
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.engine_core.checkpoint.tokenizer.training import byte_ranks

_WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdeho!?,",
    "hello",
    "wor",
    "##ld",
    "##s",
    "caf",
    "cafe",
    "é",
]
_ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def write_merges(folder: Path, special: Sequence[str] = (), **beside: object) -> Path:
    described, vocab = ranked(GPT2, byte_ranks(), "vocab.json")
    model = described["model"]
    assert isinstance(model, dict)
    vocab |= {text: len(vocab) + i for i, text in enumerate(special)}
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    return write_beside(folder, **beside)


def write_words(folder: Path, **beside: object) -> Path:
    (folder / "vocab.txt").write_text("\n".join(_WORDS) + "\n")
    return write_beside(folder, **beside)


def write_beside(folder: Path, **beside: object) -> Path:
    for stem, content in beside.items():
        (folder / f"{stem}.json").write_text(json.dumps(content))
    return folder


Both = tuple[Tokenizer, PreTrainedTokenizerFast]
KindOf = Callable[[str], Both]
Make = Callable[[Path], tuple[Path, PreTrainedTokenizerFast]]


def merging(cls: type[PreTrainedTokenizerFast], special: list[str], **beside: object) -> Make:
    def make(folder: Path) -> tuple[Path, PreTrainedTokenizerFast]:
        write_merges(folder, special, **beside)
        return folder, cls.from_pretrained(folder)

    return make


def of_words(**config: object) -> Make:
    def make(folder: Path) -> tuple[Path, PreTrainedTokenizerFast]:
        write_words(folder, config={"model_type": "bert"}, tokenizer_config=config)
        return folder, BertTokenizer.from_pretrained(folder)

    return make


_ADDED = {"added_tokens_decoder": {"401": {"content": "<|im_end|>", "special": True}}}
KINDS: dict[str, Make] = {
    "GPT-2": merging(GPT2Tokenizer, ["<|endoftext|>"], config={"model_type": "gpt2"}),
    "GPT-2 with a space": merging(
        GPT2Tokenizer,
        ["<|endoftext|>"],
        tokenizer_config={"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True},
    ),
    "Qwen2": merging(
        Qwen2Tokenizer, ["<|endoftext|>"], config={"model_type": "qwen3"}, tokenizer_config=_ADDED
    ),
    "RoBERTa": merging(RobertaTokenizer, _ROBERTA, config={"model_type": "roberta"}),
    "BERT": of_words(),
    "BERT with capitals": of_words(do_lower_case=False, tokenizer_class="BertTokenizer"),
    "BERT with accents": of_words(strip_accents=False, tokenize_chinese_chars=False),
}


@pytest.fixture(scope="module")
def kind_of(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[Tokenizer, PreTrainedTokenizerFast]]:
    made: dict[str, tuple[Tokenizer, PreTrainedTokenizerFast]] = {}

    def make(name: str) -> tuple[Tokenizer, PreTrainedTokenizerFast]:
        if name not in made:
            folder, reference = KINDS[name](tmp_path_factory.mktemp("model"))
            check_text_files(folder)
            made[name] = Tokenizer(folder), reference
        return made[name]

    return make


_SNIPPETS = st.sampled_from(
    [*"abcdeho !?,", "Hello", "world", "worlds", "café", "Café", "it's", "中", "\n", "<|im_end|>"]
)


@pytest.mark.parametrize("name", KINDS)
@given(text=st.one_of(st.text(max_size=20), st.lists(_SNIPPETS, max_size=10).map("".join)))
def test_ids_are_those_of_transformers(kind_of: KindOf, name: str, text: str) -> None:
    tokenizer, reference = kind_of(name)
    ids = tokenizer.encode(text, parse_special_tokens=True)
    assert ids == reference(text)["input_ids"]
    assert tokenizer.encode_pair(text, "hello").token_ids == reference(text, "hello")["input_ids"]
    if "BERT" not in name:
        assert tokenizer.decode(ids) == reference.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


@pytest.mark.parametrize("name", KINDS)
def test_special_tokens_are_those_of_transformers(kind_of: KindOf, name: str) -> None:
    tokenizer, reference = kind_of(name)
    added = reference.added_tokens_decoder.items()
    assert tokenizer.special_tokens == {token.content: i for i, token in added if token.special}


@pytest.mark.parametrize("name", KINDS)
def test_tokens_have_the_roles_that_transformers_gives_them(kind_of: KindOf, name: str) -> None:
    tokenizer, reference = kind_of(name)
    theirs = reference.special_tokens_map
    assert {role: text for role, text in theirs.items() if text in tokenizer.added_tokens} == {
        role: text for role, text in tokenizer.named_tokens.items() if text in tokenizer.added_tokens
    }


def lose(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def put(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


@pytest.mark.parametrize(
    ("write", "damage", "words"),
    [
        (write_merges, lose("merges.txt"), "vocab.json: merges.txt is missing"),
        (write_merges, put("merges.txt", "a b c\n"), "line 1 of merges.txt is no pair"),
        (write_merges, put("merges.txt", "\n<|x|> a\n"), "line 2 of merges.txt is no pair"),
        (write_merges, put("config.json", '{"model_type": "whisper"}'), "must be one of GPT2Tokenizer"),
        (write_merges, put("vocab.json", "[]"), "must give each token an id"),
        (write_merges, put("vocab.json", '{"a": -1}'), "must give each token an id"),
        (write_merges, put("vocab.json", '{"a": 1, "b": 1}'), "gives several tokens the same id"),
        (write_merges, put("vocab.json", '{"a": 1}'), "merges.txt"),
        (write_words, put("config.json", "{}"), "tokenizer_class must be one of BertTokenizer"),
        (write_words, put("vocab.txt", "a\nb\n"), r"does not hold '\[UNK\]'"),
        (write_words, put("tokenizer_config.json", '{"do_lower_case": 1}'), "do_lower_case must be true"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(
    tmp_path: Path, write: Callable[..., Path], damage: Callable[[Path], object], words: str
) -> None:
    model_type = "bert" if write is write_words else "gpt2"
    folder = write(
        tmp_path, *([] if write is write_words else [["<|endoftext|>"]]), config={"model_type": model_type}
    )
    damage(folder)
    with pytest.raises(ModelLoadError, match=words):
        check_text_files(tmp_path)


def test_a_vocabulary_that_lacks_a_letter_is_refused(tmp_path: Path) -> None:
    write_merges(tmp_path, config={"model_type": "gpt2"})
    vocab = json.loads((tmp_path / "vocab.json").read_text())
    (tmp_path / "merges.txt").write_text("")
    (tmp_path / "vocab.json").write_text(json.dumps({text: i for text, i in vocab.items() if text != "!"}))
    with pytest.raises(ModelLoadError, match="has no token for the letter '!'"):
        check_text_files(tmp_path)
