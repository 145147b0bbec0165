"""A vocabulary of tiktoken → tokenizer.json, for the models whose way to cut texts is known.

Such a file has tokens and their ranks, a line each. How texts are cut into words and which tokens are special
stands in Python code beside it, which is never run; for some models it is known.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from splitserve.engine_core.checkpoint.tokenizer.beside import Beside, Made, with_tokens
from splitserve.engine_core.checkpoint.tokenizer.byte_pairs import missing_byte, ranked
from splitserve.engine_core.checkpoint.tokenizer.sections import (
    added_token,
    around,
    framed,
    set_vocab,
    whole,
)
from splitserve.engine_core.checkpoint.tokenizer.splits import KIMI, LLAMA3, QWEN2, Split
from splitserve.engine_core.errors import ModelLoadError

_LINE = re.compile(rb"(?P<token>[A-Za-z0-9+/]+={0,2}) (?P<rank>[0-9]{1,7})")
_MAX_RANK = 2**21
_MAX_TOKEN_BYTES = 2**12
_LLAMA3_SIZE = 128_000


class _Model(NamedTuple):
    """What the code beside a vocabulary says.

    Attributes:
        split: how texts are cut.
        special: names of the special tokens behind the ranked ones, which it has if nothing beside it
            names others; takes the id of the first.
        begin: tokens that are put before texts.
        roles: tokens for "eos_token" and the like.
    """

    split: Split
    special: Callable[[int], list[str]] = lambda _first: []
    begin: tuple[str, ...] = ()
    roles: Mapping[str, str] = MappingProxyType({})


def _of_qwen(_first: int) -> list[str]:
    return ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]


def _of_kimi(first: int) -> list[str]:
    return [f"<|reserved_token_{token_id}|>" for token_id in range(first, first + 256)]


def _of_llama3(_first: int) -> list[str]:
    """Name them as Llama 3.1 does; the first Llama 3 has reserved ones in place of those it does not know."""
    reserved = [f"<|reserved_special_token_{i}|>" for i in range(248)]
    return [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        *reserved[:2],
        "<|finetune_right_pad_id|>",
        reserved[2],
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|python_tag|>",
        *reserved[3:],
    ]


_QWEN = _Model(QWEN2, _of_qwen, roles={"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"})
_BY_CLASS = {
    "QWenTokenizer": _QWEN,
    "TikTokenTokenizer": _Model(KIMI, _of_kimi, roles={"bos_token": "[BOS]", "eos_token": "[EOS]"}),
    "ChatGLM4Tokenizer": _Model(LLAMA3, begin=("[gMASK]", "<sop>"), roles={"eos_token": "<|endoftext|>"}),
}
_LLAMA3 = _Model(
    LLAMA3,
    _of_llama3,
    begin=("<|begin_of_text|>",),
    roles={"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"},
)
_LLAMA3_CLASSES = ("", "PreTrainedTokenizer", "LlamaTokenizer")
_LLAMA3_TYPES = ("", "llama", "mllama")


def is_tiktoken(data: bytes) -> bool:
    """Whether a file called tokenizer.model begins as a vocabulary of tiktoken does."""
    return _LINE.fullmatch(data[:_MAX_TOKEN_BYTES].partition(b"\n")[0].rstrip()) is not None


def make_from_ranks(files: tuple[bytes, ...], beside: Beside) -> Made:
    """Return what is made of a vocabulary.

    Args:
        files: the vocabulary's, alone.
        beside: what stands beside it.

    Raises:
        ModelLoadError: the file is damaged, or nobody knows how its texts are cut.
    """
    ranks = _parse(files[0], beside.where)
    model = _model(len(ranks), beside)
    byte = missing_byte(ranks)
    if byte is not None:
        raise ModelLoadError(f"{beside.where} has no token for the byte {byte}")
    first = 1 + max(ranks.values())
    own = {
        token_id: added_token(token_id, name, special=True)
        for token_id, name in enumerate(model.special(first), first)
    }
    sections, vocab = ranked(model.split, ranks, beside.where)
    added, vocab = with_tokens(vocab, own, beside)
    begin = model.begin if beside.config.boolean("add_bos_token", True) else ()
    missing = [name for name in begin if name not in vocab]
    if missing:
        raise beside.error(f"nothing names the token {missing[0]}, which texts begin with")
    set_vocab(sections, vocab)
    sections["post_processor"] = framed(sections["post_processor"], around(begin, ()), vocab)
    roles = {role: text for role, text in model.roles.items() if text in vocab}
    return Made(whole(added, sections), roles)


def _model(num_ranks: int, beside: Beside) -> _Model:
    name = beside.class_name
    known = _BY_CLASS.get(name)
    if known is None and Path(beside.where).name == "qwen.tiktoken":
        known = _QWEN
    is_llama = name in _LLAMA3_CLASSES and beside.model_type in _LLAMA3_TYPES
    if known is None and is_llama and num_ranks == _LLAMA3_SIZE:
        known = _LLAMA3
    if known is None:
        raise beside.error(
            f"it is a vocabulary of tiktoken that does not say how texts are cut, neither that of Llama 3 "
            f"({_LLAMA3_SIZE} tokens) nor one of {', '.join(_BY_CLASS)}"
        )
    return known


def _parse(data: bytes, where: str) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        line = line.rstrip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        try:
            token = base64.b64decode(match["token"], validate=True) if match else b""
        except binascii.Error:
            token = b""
        rank = int(match["rank"]) if match else _MAX_RANK
        if not 0 < len(token) <= _MAX_TOKEN_BYTES or rank >= _MAX_RANK:
            raise ModelLoadError(f"{where}: line {number} is no token in base64 and its rank")
        if token in ranks:
            raise ModelLoadError(f"{where}: line {number} holds a token for the second time")
        ranks[token] = rank
    if not ranks or len(set(ranks.values())) != len(ranks):
        raise ModelLoadError(f"{where} gives several tokens the same rank, or has none")
    return ranks
