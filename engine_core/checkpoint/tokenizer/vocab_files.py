"""vocab.json with merges.txt, as GPT-2 has them, or BERT's vocab.txt → tokenizer.json.

Such files do not say how texts are cut; the tokenizer's class or the model's type does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from splitserve.engine_core.checkpoint.tokenizer.beside import Beside, Made, with_tokens
from splitserve.engine_core.checkpoint.tokenizer.byte_pairs import LETTERS
from splitserve.engine_core.checkpoint.tokenizer.sections import (
    FIRST,
    SECOND,
    Json,
    around,
    byte_level,
    framed,
    set_vocab,
    whole,
)
from splitserve.engine_core.checkpoint.tokenizer.splits import GPT2, QWEN2
from splitserve.engine_core.errors import ModelLoadError

_MAX_TOKENS = 2**21
_GPT2, _QWEN2, _ROBERTA = "GPT2Tokenizer", "Qwen2Tokenizer", "RobertaTokenizer"
_MERGING = {_GPT2: GPT2, "GPTNeoXTokenizer": GPT2, _QWEN2: QWEN2, _ROBERTA: GPT2}
_MERGING_TYPES = {
    "gpt2": _GPT2,
    "roberta": _ROBERTA,
    "starcoder2": _GPT2,
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), _QWEN2),
}
_END = "<|endoftext|>"
# Tokens that a class has by itself.
_USUAL: dict[str, dict[str, str]] = {
    _GPT2: dict.fromkeys(("bos_token", "eos_token", "unk_token"), _END),
    "GPTNeoXTokenizer": dict.fromkeys(("bos_token", "eos_token", "unk_token"), _END),
    _QWEN2: dict.fromkeys(("eos_token", "unk_token", "pad_token"), _END),
    _ROBERTA: {
        **dict.fromkeys(("bos_token", "cls_token"), "<s>"),
        **dict.fromkeys(("eos_token", "sep_token"), "</s>"),
        **{"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"},
    },
}
_WORDS = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
_WORD_TYPES = dict.fromkeys(("bert", "nomic_bert"), _WORDS[0])
# Names of classes that say nothing.
_VAGUE = ("", "PreTrainedTokenizer")


def make_from_merges(files: tuple[bytes, ...], beside: Beside) -> Made:
    """Return what is made of byte-level BPE.

    Args:
        files: vocab.json and merges.txt.
        beside: what stands beside them.

    Raises:
        ModelLoadError: a file is damaged, or nobody knows how texts are cut.
    """
    name = _class_of(beside, _MERGING_TYPES)
    split = _MERGING.get(name)
    if split is None:
        raise beside.error(
            f"tokenizer_class must be one of {', '.join(_MERGING)}, or model_type one of "
            f"{', '.join(_MERGING_TYPES)}, to say how texts are cut; got {name!r:.100}"
        )
    vocab = _vocab(files[0], beside)
    merges = _merges(files[1], vocab, beside)
    if missing := sorted(LETTERS - vocab.keys()):
        raise ModelLoadError(f"{beside.where} has no token for the letter {missing[0]!r}")
    adds_prefix = beside.config.boolean("add_prefix_space", False)
    sections = byte_level(split, vocab, merges, adds_prefix=adds_prefix)
    roles = {role: text for role, text in _USUAL[name].items() if text in vocab}
    added, vocab = with_tokens(vocab, {}, beside.with_special(list(roles.values())))
    set_vocab(sections, vocab)
    sections["post_processor"] = _merging_frame(name, sections["post_processor"], vocab, beside)
    return Made(whole(added, sections), roles)


def make_from_words(files: tuple[bytes, ...], beside: Beside) -> Made:
    """Return what is made of BERT's words and parts of words.

    Args:
        files: vocab.txt, alone.
        beside: what stands beside it.

    Raises:
        ModelLoadError: the file is damaged, or belongs to another kind of tokenizer.
    """
    name = _class_of(beside, _WORD_TYPES)
    if name not in _WORDS:
        raise beside.error(
            f"tokenizer_class must be one of {', '.join(_WORDS)}, or model_type one of "
            f"{', '.join(_WORD_TYPES)}; got {name!r:.100}"
        )
    vocab = _words(files[0], beside)
    roles = {role: f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")}
    names = {role: beside.role(f"{role}_token", usual) for role, usual in roles.items()}
    if missing := next((names[role] for role in ("unk", "cls", "sep") if names[role] not in vocab), None):
        raise ModelLoadError(f"{beside.where} does not hold {missing!r:.100}")
    present = [text for text in names.values() if text in vocab]
    added, vocab = with_tokens(vocab, {}, beside.with_special(present))
    config = beside.config
    strips = config.raw("strip_accents")
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": config.boolean("tokenize_chinese_chars", True),
        "strip_accents": None if strips is None else config.boolean("strip_accents", True),
        "lowercase": config.boolean("do_lower_case", True),
    }
    single = [(names["cls"], 0), (FIRST, 0), (names["sep"], 0)]
    sections: Json = {
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": framed(None, (single, [*single, (SECOND, 1), (names["sep"], 1)]), vocab),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": names["unk"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    }
    return Made(whole(added, sections), {f"{role}_token": text for role, text in names.items()})


def _class_of(beside: Beside, types: Mapping[str, str]) -> str:
    name = beside.class_name
    return types.get(beside.model_type, name) if name in _VAGUE else name


def _merging_frame(name: str, inner: object, vocab: Mapping[str, int], beside: Beside) -> object:
    if name == _ROBERTA:
        cls, sep = (beside.role(f"{role}_token", usual) for role, usual in (("cls", "<s>"), ("sep", "</s>")))
        if missing := next((text for text in (cls, sep) if text not in vocab), None):
            raise ModelLoadError(f"{beside.where} does not hold {missing!r:.100}")
        single = [(cls, 0), (FIRST, 0), (sep, 0)]
        return framed(inner, (single, [*single, (sep, 0), (SECOND, 0), (sep, 0)]), vocab)
    ends = [
        [text] if beside.config.boolean(f"add_{role}_token", False) and text in vocab else []
        for role in ("bos", "eos")
        for text in [beside.role(f"{role}_token", _END)]
    ]
    return framed(inner, around(ends[0], ends[1]), vocab)


def _vocab(data: bytes, beside: Beside) -> dict[str, int]:
    try:
        found = json.loads(data)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"cannot read {beside.where}: {error}") from None
    if not isinstance(found, dict) or not all(
        type(token_id) is int and 0 <= token_id < _MAX_TOKENS for token_id in found.values()
    ):
        raise ModelLoadError(f"{beside.where} must give each token an id from 0 to {_MAX_TOKENS - 1}")
    if len(set(found.values())) != len(found):
        raise ModelLoadError(f"{beside.where} gives several tokens the same id")
    return found


def _merges(data: bytes, vocab: Mapping[str, int], beside: Beside) -> list[list[str]]:
    # Not splitlines(): what separates lines in Unicode is a letter of some tokens.
    lines = [line.rstrip("\r") for line in _text(data, beside).split("\n")]
    merges = []
    for number, line in enumerate(lines, 1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not all(text in vocab for text in (*pair, "".join(pair))):
            raise beside.error(f"line {number} of merges.txt is no pair of tokens that make a token")
        merges.append(pair)
    return merges


def _words(data: bytes, beside: Beside) -> dict[str, int]:
    lines = _text(data, beside).split("\n")
    if lines[-1] == "":
        lines.pop()
    # As transformers reads it: of a word that stands there twice the last one counts.
    return {line.rstrip("\r"): number for number, line in enumerate(lines)}


def _text(data: bytes, beside: Beside) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise beside.error(f"it or what stands beside it is not UTF-8: {error}") from None
