"""Mistral's tekken.json → tokenizer.json; it says itself how texts are cut and which tokens are special."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

import msgspec

from splitserve.engine_core.checkpoint.tokenizer.beside import Beside, Made, with_tokens
from splitserve.engine_core.checkpoint.tokenizer.byte_pairs import missing_byte, ranked
from splitserve.engine_core.checkpoint.tokenizer.sections import (
    added_token,
    around,
    framed,
    set_vocab,
    whole,
)
from splitserve.engine_core.checkpoint.tokenizer.splits import Split
from splitserve.engine_core.errors import ModelLoadError

_MAX_TOKENS = 2**21
_MAX_SPECIAL = 2**14
_BOS = "<s>"
_ROLES = {"bos_token": _BOS, "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class _Config(msgspec.Struct, frozen=True):
    # An empty one would stand for GPT-2's.
    pattern: Annotated[str, msgspec.Meta(min_length=1)]
    default_vocab_size: int | None = None
    default_num_special_tokens: int | None = None


class _Word(msgspec.Struct, frozen=True):
    rank: int
    token_bytes: str


class _Special(msgspec.Struct, frozen=True):
    rank: int
    token_str: str


class _File(msgspec.Struct, frozen=True):
    config: _Config
    vocab: list[_Word]
    special_tokens: list[_Special] | None = None


def make_from_tekken(files: tuple[bytes, ...], beside: Beside) -> Made:
    """Return what is made of a tekken.json.

    Args:
        files: the vocabulary's, alone.
        beside: what stands beside it.

    Raises:
        ModelLoadError: the file is damaged, or so old that it does not name its special tokens.
    """
    try:
        file = msgspec.json.decode(files[0], type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelLoadError(f"cannot read {beside.where}: {error}") from None
    special = _special(file, beside)
    ranks = _ranks(file, len(special), beside)
    sections, vocab = ranked(Split(file.config.pattern), ranks, beside.where, len(special))
    own = {i: added_token(i, name, special=True) for i, name in enumerate(special)}
    added, vocab = with_tokens(vocab, own, beside)
    set_vocab(sections, vocab)
    begin = [_BOS] if _BOS in vocab and beside.config.boolean("add_bos_token", True) else []
    sections["post_processor"] = framed(sections["post_processor"], around(begin, []), vocab)
    roles = {role: text for role, text in _ROLES.items() if text in vocab}
    return Made(whole(added, sections), roles)


def _special(file: _File, beside: Beside) -> list[str]:
    """Return the names of the special tokens, which have the first ids."""
    if file.special_tokens is None:
        raise beside.error("it does not name its special tokens, as the first files of its kind did not")
    listed = sorted(file.special_tokens, key=lambda token: token.rank)
    names = [token.token_str for token in listed]
    wanted = file.config.default_num_special_tokens
    count = len(names) if wanted is None else wanted
    if [token.rank for token in listed] != list(range(len(listed))) or not len(
        names
    ) <= count <= _MAX_SPECIAL:
        raise ModelLoadError(f"{beside.where}: special_tokens must have the ranks from 0 without a gap")
    names += [f"<SPECIAL_{i}>" for i in range(len(names), count)]
    if len(set(names)) != len(names) or "" in names:
        raise ModelLoadError(f"{beside.where}: special_tokens holds the same text twice, or an empty one")
    return names


def _ranks(file: _File, num_special: int, beside: Beside) -> dict[bytes, int]:
    size = file.config.default_vocab_size
    # What lies beyond is not part of the model.
    words = file.vocab if size is None else file.vocab[: max(0, size - num_special)]
    if len(words) > _MAX_TOKENS or any(word.rank != rank for rank, word in enumerate(words)):
        raise ModelLoadError(f"{beside.where}: vocab must have the ranks from 0 without a gap")
    try:
        ranks = {base64.b64decode(word.token_bytes, validate=True): word.rank for word in words}
    except (binascii.Error, ValueError) as error:
        raise ModelLoadError(f"{beside.where}: token_bytes of vocab: {error}") from None
    if len(ranks) != len(words) or b"" in ranks:
        raise ModelLoadError(f"{beside.where}: vocab holds the same token twice, or an empty one")
    byte = missing_byte(ranks)
    if byte is not None:
        raise ModelLoadError(f"{beside.where} has no token for the byte {byte}")
    return ranks
