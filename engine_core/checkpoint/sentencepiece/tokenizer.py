"""tokenizer.model, and what stands beside it → tokenizer.json.

Models of byte-pair encoding are taken, as those of Llama 2, Mistral and Gemma are; what the tokenizers
library would read in another way than SentencePiece does is refused.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.files import read_file, read_json
from splitserve.engine_core.checkpoint.gguf.tokenizer import Vocabulary, make_tokenizer
from splitserve.engine_core.checkpoint.sentencepiece.model_file import (
    ModelType,
    SentencePieceModel,
    parse_model,
)
from splitserve.engine_core.errors import ModelLoadError

MODEL = "tokenizer.model"
_CONFIG, _ADDED = "tokenizer_config.json", "added_tokens.json"
_KEY = "tokenizer.ggml."
_MAX_ADDED_ID = 2**21
Token = dict[str, object]
_SPACE, _USER_DEFINED, _UNUSED = "\u2581", 4, 5
# Of the files of token counts that tiktoken reads, which have the same name in some checkpoints.
_TIKTOKEN = b"IQ== "


def make_tokenizer_json(directory: Path) -> bytes | None:
    """Return tokenizer.json of a checkpoint without one; None if it has no tokenizer.model either.

    Making it takes a second or two for large vocabularies; the last few are kept.

    Raises:
        ModelLoadError: the file is damaged, or asks for what is not supported.
    """
    path = directory / MODEL
    data = read_file(path)
    if data is None:
        return None
    if data.startswith(_TIKTOKEN):
        raise ModelLoadError(
            f"{path} is a vocabulary of tiktoken, which does not say how texts are split: a tokenizer.json "
            "is needed beside it"
        )
    return _made(data, str(path), json.dumps(read_json(directory / _CONFIG)), _added(directory))


@functools.lru_cache(4)
def _made(data: bytes, where: str, config: str, added: tuple[tuple[str, int], ...]) -> bytes:
    model = parse_model(data, where)
    _check(model, where)
    vocabulary = _vocabulary(model, Fields(json.loads(config), where))
    description = make_tokenizer(vocabulary)
    _add_tokens(description, _beside(model, json.loads(config), dict(added), where), where)
    return json.dumps(description, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _check(model: SentencePieceModel, where: str) -> None:
    problem = ""
    if model.model_type != ModelType.BPE:
        names = {each.value: each.name for each in ModelType}
        problem = (
            f"its model_type is {names.get(model.model_type, model.model_type)}, and only BPE is supported"
        )
    elif model.changes_letters:
        problem = "it normalizes letters"
    elif model.removes_spaces or not model.escapes_spaces:
        problem = "it treats spaces in a way of its own"
    elif len(set(model.pieces)) != len(model.pieces):
        problem = "it has the same piece twice"
    if problem:
        raise ModelLoadError(f"{where}: {problem}; a tokenizer.json is needed beside it")


def _vocabulary(model: SentencePieceModel, config: Fields) -> Vocabulary:
    """Return the model as a GGUF file would describe it."""
    ids = {"unknown": model.unk_id, "bos": model.bos_id, "eos": model.eos_id, "padding": model.pad_id}
    described: dict[str, object] = {
        f"{_KEY}{role}_token_id": token_id
        for role, token_id in ids.items()
        if 0 <= token_id < len(model.pieces)
    }
    described |= {
        f"{_KEY}scores": model.scores,
        f"{_KEY}add_space_prefix": config.boolean("add_prefix_space", model.adds_prefix),
        # As transformers' Llama and Gemma tokenizers have it.
        f"{_KEY}add_bos_token": config.boolean("add_bos_token", True),
        f"{_KEY}add_eos_token": config.boolean("add_eos_token", False),
    }
    # Neither merged nor looked for as they are spelled.
    spaced = set(_spaced(model).values())
    types = [_UNUSED if token_id in spaced else kind for token_id, kind in enumerate(model.types)]
    return Vocabulary(Fields(described, config.where), "llama", model.pieces, types)


def _spaced(model: SentencePieceModel) -> dict[str, int]:
    """Return the user-defined pieces with spaces, as texts have them: they are cut out first of all."""
    if model.adds_prefix:
        return {}
    kinds = enumerate(zip(model.pieces, model.types, strict=True))
    return {
        piece.replace(_SPACE, " "): token_id
        for token_id, (piece, kind) in kinds
        if kind == _USER_DEFINED and _SPACE in piece
    }


def _added(directory: Path) -> tuple[tuple[str, int], ...]:
    path = directory / _ADDED
    found = read_json(path)
    if not all(type(token_id) is int and 0 <= token_id < _MAX_ADDED_ID for token_id in found.values()):
        raise ModelLoadError(f"{path} must give each token an id from 0 to {_MAX_ADDED_ID - 1}")
    return tuple((text, token_id) for text, token_id in found.items() if isinstance(token_id, int))


def _beside(
    model: SentencePieceModel, config: dict[str, object], added: dict[str, int], where: str
) -> dict[int, Token]:
    """Return the tokens that the model does not spell: its own with spaces, and those of files beside it."""
    tokens = {
        token_id: _token(token_id, {"content": text, "special": True}, where)
        for text, token_id in added.items()
    }
    named = config.get("added_tokens_decoder")
    for key, value in (named if isinstance(named, dict) else {}).items():
        if not (key.isascii() and key.isdigit() and int(key) < _MAX_ADDED_ID and isinstance(value, dict)):
            raise ModelLoadError(f"{where}: added_tokens_decoder of {_CONFIG} holds {key[:100]!r}")
        tokens[int(key)] = _token(int(key), value, where)
    return tokens | {
        token_id: _token(token_id, {"content": text}, where) for text, token_id in _spaced(model).items()
    }


def _add_tokens(description: dict[str, object], others: dict[int, Token], where: str) -> None:
    """Add tokens to tokenizer.json, or rename those that have their ids."""
    model, listed = description["model"], description["added_tokens"]
    assert isinstance(model, dict)
    assert isinstance(listed, list)
    tokens = {each["id"]: each for each in listed} | others
    vocab, by_id = model["vocab"], {token_id: text for text, token_id in model["vocab"].items()}
    for token_id, token in tokens.items():
        text = str(token["content"])
        if vocab.get(text, token_id) != token_id:
            raise ModelLoadError(
                f"{where}: the token {text[:100]!r} has two ids, {vocab[text]} and {token_id}"
            )
        if by_id.get(token_id, text) != text:
            # The piece of this id has another name beside the model; texts never hold it.
            del vocab[by_id[token_id]]
        vocab[text] = token_id
    description["added_tokens"] = [tokens[token_id] for token_id in sorted(tokens)]


def _token(token_id: int, value: dict[str, object], where: str) -> Token:
    text = value.get("content")
    if not isinstance(text, str) or not text:
        raise ModelLoadError(f"{where}: the added token {token_id} has no content")
    switches = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": token_id, "content": text, **{name: value.get(name) is True for name in switches}}
