"""The sections of tokenizer.json that vocabularies of several kinds have alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from splitserve.engine_core.checkpoint.tokenizer.splits import Split

Json = dict[str, object]
_SWITCHES = ("single_word", "lstrip", "rstrip", "normalized", "special")
# What stands for the texts in a template; all else there are tokens.
FIRST, SECOND = "$A", "$B"


def whole(added_tokens: Sequence[Json], sections: Mapping[str, object]) -> Json:
    """Return tokenizer.json of added tokens and the sections that make and read ids."""
    head: Json = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added_tokens)}
    return head | dict(sections)


def added_token(token_id: int, content: str, **switches: bool) -> Json:
    """Return an added token; switches that are not given are off."""
    return {"id": token_id, "content": content, **{name: switches.get(name, False) for name in _SWITCHES}}


def bpe(vocab: Mapping[str, int], merges: list[list[str]], **other: object) -> Json:
    """Return a model of byte-pair encoding; `other` replaces its usual values."""
    usual: Json = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return usual | other | {"vocab": dict(vocab), "merges": merges}


def set_vocab(sections: Json, vocab: Mapping[str, int]) -> None:
    """Replace the vocabulary of a model."""
    model = sections["model"]
    assert isinstance(model, dict)
    model["vocab"] = dict(vocab)


def byte_level(
    split: Split, vocab: Mapping[str, int], merges: list[list[str]], *, adds_prefix: bool = False
) -> Json:
    """Return the sections of byte-level BPE.

    Args:
        split: how texts are cut into words.
        vocab: ids by spelling.
        merges: pairs of spellings, best first.
        adds_prefix: a space is put before texts.
    """
    step: Json = {"type": "ByteLevel", "add_prefix_space": adds_prefix, "trim_offsets": True}
    step["use_regex"] = False
    return {
        "normalizer": {"type": "NFC"} if split.is_normalized else None,
        "pre_tokenizer": _pre_tokenizer(split, step),
        "post_processor": {**step, "add_prefix_space": False, "trim_offsets": False},
        "decoder": {**step, "add_prefix_space": False, "use_regex": True},
        "model": bpe(vocab, merges, ignore_merges=split.takes_whole_words),
    }


def _pre_tokenizer(split: Split, step: Json) -> Json:
    if split.parts_digits:
        digits = {"type": "Digits", "individual_digits": True}
        return {"type": "Sequence", "pretokenizers": [digits, {**step, "use_regex": True}]}
    if not split.pattern:
        return {**step, "use_regex": True}
    cut = {"type": "Split", "pattern": {"Regex": split.pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [cut, step]}


def around(begin: Sequence[str], end: Sequence[str]) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return the templates of a text and of a pair, each of whose texts stands between the same tokens."""
    single = [(name, 0) for name in (*begin, FIRST, *end)]
    return single, [*single, *((name, 1) for name in (*begin, SECOND, *end))]


def framed(
    inner: object, templates: tuple[list[tuple[str, int]], list[tuple[str, int]]], ids: Mapping[str, int]
) -> object:
    """Return a post-processor that puts tokens around texts, behind another one.

    Args:
        inner: the other one; None for none.
        templates: of a single text and of a pair: tokens, FIRST and SECOND, each with its token type.
        ids: of the tokens.
    """
    single, pair = templates
    tokens = {name for name, _ in pair} - {FIRST, SECOND}
    if not tokens:
        return inner
    template = {
        "type": "TemplateProcessing",
        "single": [_part(name, kind) for name, kind in single],
        "pair": [_part(name, kind) for name, kind in pair],
        "special_tokens": {
            name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in sorted(tokens)
        },
    }
    return template if inner is None else {"type": "Sequence", "processors": [inner, template]}


def _part(name: str, kind: int) -> Json:
    if name in (FIRST, SECOND):
        return {"Sequence": {"id": name[1:], "type_id": kind}}
    return {"SpecialToken": {"id": name, "type_id": kind}}
