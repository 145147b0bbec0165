"""A SentencePiece model of any kind gives the ids and texts of SentencePiece's library, over random texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLTokenizer
from transformers import XLMRobertaTokenizer

from splitserve.engine_core.checkpoint.text_files import check_text_files, read_tokenizer_json
from splitserve.engine_core.errors import ModelLoadError
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.engine_core.checkpoint.tokenizer.training import LINES, sentencepiece_library, sentencepiece_model

_PLAIN: dict[str, object] = {
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "byte_fallback": True,
}
_SYMBOLS = {"user_defined_symbols": "<sep>,a  b,q"}
KINDS: dict[str, tuple[str, dict[str, object]]] = {
    "bpe as Llama's": ("bpe", _PLAIN),
    "bpe as Gemma's": ("bpe", _PLAIN | {"add_dummy_prefix": False}),
    "bpe, normalized": ("bpe", {"normalization_rule_name": "nmt_nfkc"}),
    "bpe with symbols": ("bpe", _PLAIN | _SYMBOLS),
    "unigram as T5's": ("unigram", {"normalization_rule_name": "nmt_nfkc"}),
    "unigram, folded": ("unigram", {"normalization_rule_name": "nfkc_cf", "byte_fallback": True}),
    "unigram as a Llama's": ("unigram", _PLAIN),
    "unigram without a prefix": ("unigram", _PLAIN | {"add_dummy_prefix": False}),
    "unigram with symbols": ("unigram", _PLAIN | _SYMBOLS),
}
# Without letters that combine: where a table of letters has a sequence of some, the tokenizers library looks
# for less than SentencePiece does.
_LETTERS = st.characters(
    blacklist_categories=["Cs", "Mn", "Mc", "Me", "Lm", "Cf", "Co", "Cn"], max_codepoint=0xFFFF
).filter(lambda letter: not 0x1100 <= ord(letter) < 0x1200)
_SNIPPETS = st.sampled_from(
    [
        *"abcdehlost <>/",
        "<s>",
        "</s>",
        "<unk>",
        "<0x41>",
        "▁",
        "  ",
        "\n",
        "<sep>",
        "a  b",
        "you",
        "世",
        "😀",
        "ё",
    ]
)
_TEXTS = st.one_of(st.text(_LETTERS, max_size=30), st.lists(_SNIPPETS, max_size=12).map("".join))

TokenizerOf = Callable[[str], Tokenizer]


@pytest.fixture(scope="module")
def tokenizer_of(tmp_path_factory: pytest.TempPathFactory) -> TokenizerOf:
    made: dict[str, Tokenizer] = {}

    def make(name: str) -> Tokenizer:
        if name not in made:
            made[name] = Tokenizer(folder(tmp_path_factory.mktemp("model"), name))
        return made[name]

    return make


def folder(place: Path, name: str, file: str = "tokenizer.model", **beside: object) -> Path:
    kind, options = KINDS[name]
    (place / file).write_bytes(sentencepiece_model(kind, **options))
    for stem, content in beside.items():
        (place / f"{stem}.json").write_text(json.dumps(content))
    check_text_files(place)
    return place


@pytest.mark.parametrize("name", KINDS)
@given(text=_TEXTS)
def test_ids_and_texts_are_those_of_the_library(tokenizer_of: TokenizerOf, name: str, text: str) -> None:
    kind, options = KINDS[name]
    library = sentencepiece_library(sentencepiece_model(kind, **options))
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode(text, False)
    assert ids == library.encode(text)
    if library.unk_id() in ids:
        return
    decoder = tokenizer.detokenizer()
    assert "".join(decoder.push([i]) for i in ids) + decoder.finish() == library.decode(ids)


@pytest.mark.parametrize("name", KINDS)
def test_grammars_see_the_bytes_of_every_token(tmp_path: Path, tokenizer_of: TokenizerOf, name: str) -> None:
    tokenizer = tokenizer_of(name)
    described = read_tokenizer_json(folder(tmp_path, name)).decode()
    grammars = LLTokenizer(described, n_vocab=tokenizer.vocab_size, eos_token=[2])
    ids = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids]
    # 0xFF marks special tokens there; no text has it.
    data = {i: tokenizer.token_text(i).data for i in ids if tokenizer.token_text(i).data != b"\xff"}
    assert {i: grammars.decode_bytes([i]) for i in data} == data


def test_xlm_roberta_has_its_own_numbers(tmp_path: Path) -> None:
    folder(tmp_path, "unigram as T5's", "sentencepiece.bpe.model", config={"model_type": "xlm-roberta"})
    tokenizer, reference = Tokenizer(tmp_path), XLMRobertaTokenizer.from_pretrained(tmp_path)
    for text in [*LINES[:4], "", "  a \n b "]:
        assert tokenizer.encode(text) == reference(text)["input_ids"]
        assert tokenizer.encode_pair(text, "the cat").token_ids == reference(text, "the cat")["input_ids"]
    assert tokenizer.special_tokens == {"<s>": 0, "<pad>": 1, "</s>": 2, "<mask>": len(reference) - 1}


@pytest.mark.parametrize("name", ["bpe as Llama's", "unigram as a Llama's"])
@pytest.mark.parametrize(("legacy", "pieces"), [(True, "▁the<end>▁the"), (False, "▁the<end>the")])
def test_text_behind_a_special_token_has_a_space_unless_the_config_is_not_legacy(
    tmp_path: Path, name: str, legacy: bool, pieces: str
) -> None:
    named = {"500": {"content": "<end>", "special": True}}
    config = {"added_tokens_decoder": named, "legacy": legacy}
    tokenizer = Tokenizer(folder(tmp_path, name, tokenizer_config=config))
    ids = tokenizer.encode("the<end>the", False, parse_special_tokens=True)
    assert 500 in ids
    assert "".join(filter(None, map(tokenizer.token_name, ids))) == pieces
    assert tokenizer.decode(tokenizer.encode("the <end>", False)) == "the <end>"


def test_tokens_with_a_role_but_without_an_id_get_the_next(tmp_path: Path) -> None:
    roles = {"pad_token": "<pad>", "additional_special_tokens": ["<user>", "</s>"]}
    tokenizer = Tokenizer(folder(tmp_path, "unigram as a Llama's", special_tokens_map=roles))
    size = len(sentencepiece_library((tmp_path / "tokenizer.model").read_bytes()))
    assert tokenizer.special_tokens == {"<s>": 1, "</s>": 2, "<pad>": size, "<user>": size + 1}
    assert tokenizer.encode("<user>", False, parse_special_tokens=True) == [size + 1]
    assert tokenizer.decode(tokenizer.encode("<user> <pad>")) == "<user> <pad>"


def test_the_models_own_tokens_have_its_roles_unless_the_config_says_otherwise(tmp_path: Path) -> None:
    usual = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert Tokenizer(folder(tmp_path, "bpe as Llama's")).named_tokens == usual
    config = {"bos_token": None, "eos_token": "<end>"}
    named = Tokenizer(folder(tmp_path, "bpe as Llama's", tokenizer_config=config)).named_tokens
    assert named == {"eos_token": "<end>", "unk_token": "<unk>"}


@pytest.mark.parametrize(
    ("file", "config", "words"),
    [
        (
            "tokenizer.model",
            {"tokenizer_class": "AlbertTokenizerFast"},
            "AlbertTokenizer has rules",
        ),
        ("spiece.model", {"tokenizer_class": "T5Tokenizer"}, "numbers its extra ids in a way of its own"),
        ("sentencepiece.bpe.model", {}, "only read for an XLMRobertaTokenizer"),
    ],
)
def test_classes_with_other_rules_are_refused(
    tmp_path: Path, file: str, config: dict[str, object], words: str
) -> None:
    with pytest.raises(ModelLoadError, match=words):
        folder(tmp_path, "unigram as T5's", file, tokenizer_config=config)


def test_a_t5_tokenizer_ends_texts_and_begins_none(tmp_path: Path) -> None:
    config = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}
    tokenizer = Tokenizer(folder(tmp_path, "unigram as T5's", "spiece.model", tokenizer_config=config))
    ids = tokenizer.encode("the cat")
    assert ids == [*tokenizer.encode("the cat", False), 2]
    assert tokenizer.encode_pair("the", "cat").token_ids == [
        *tokenizer.encode("the"),
        *tokenizer.encode("cat"),
    ]
