"""What stands beside a vocabulary: its settings, and tokens that it does not hold itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.files import read_json
from splitserve.engine_core.checkpoint.tokenizer.sections import Json, added_token
from splitserve.engine_core.errors import ModelLoadError

_CONFIG, _ROLES_FILE, _ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
_MAX_ADDED_ID = 2**21
_ID = re.compile("[0-9]{1,7}")
_ROLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_SWITCHES = ("single_word", "lstrip", "rstrip", "normalized", "special")


class Made(NamedTuple):
    """What is made of a vocabulary.

    Attributes:
        description: tokenizer.json.
        roles: texts of "bos_token" and the like, as the vocabulary or its class has them by itself.
    """

    description: Json
    roles: dict[str, str]


class Beside(NamedTuple):
    """The files beside a vocabulary, as texts, so that what is made of them can be kept.

    Attributes:
        where: the vocabulary's file, for errors.
        config_text: tokenizer_config.json.
        roles_text: special_tokens_map.json.
        added: token and id of added_tokens.json.
        model_type: of config.json; "" if it says none.
    """

    where: str
    config_text: str = "{}"
    roles_text: str = "{}"
    added: tuple[tuple[str, int], ...] = ()
    model_type: str = ""

    @property
    def config(self) -> Fields:
        """tokenizer_config.json."""
        return Fields(json.loads(self.config_text), f"{Path(self.where).parent / _CONFIG}")

    @property
    def class_name(self) -> str:
        """The tokenizer's class, "" if there is none; those of the fast and the slow one have one name."""
        return self.config.text("tokenizer_class", "").removesuffix("Fast")

    def role(self, name: str, default: str) -> str:
        """Return the text of a token by its role, such as "cls_token"."""
        for values in (json.loads(self.config_text), json.loads(self.roles_text)):
            text = _content(values.get(name))
            if text:
                return text
        return default

    def with_special(self, texts: Sequence[str]) -> Beside:
        """Return the same with further special tokens, which the tokenizer's class has by itself."""
        values = json.loads(self.roles_text)
        found = values.get(_LISTS[0])
        listed = found if isinstance(found, list) else []
        return self._replace(roles_text=json.dumps({**values, _LISTS[0]: [*listed, *texts]}))

    def error(self, problem: str) -> ModelLoadError:
        """Return the error that this vocabulary cannot be used."""
        return ModelLoadError(f"{self.where}: {problem}; a tokenizer.json is needed beside it")


def read_beside(directory: Path, where: Path) -> Beside:
    """Read the files beside a vocabulary.

    Args:
        directory: the checkpoint's.
        where: the vocabulary's file.

    Raises:
        ModelLoadError: one cannot be read.
    """
    model_type = read_json(directory / "config.json").get("model_type")
    return Beside(
        str(where),
        json.dumps(read_json(directory / _CONFIG)),
        json.dumps(read_json(directory / _ROLES_FILE)),
        _added(directory / _ADDED),
        model_type if isinstance(model_type, str) else "",
    )


def with_tokens(
    vocab: Mapping[str, int], own: Mapping[int, Json], beside: Beside
) -> tuple[list[Json], dict[str, int]]:
    """Add the tokens beside a vocabulary to it.

    A token that has the id of another one has its place: texts never hold that one. Tokens with a role, or in
    a list of special ones, that have no id get the next ones, as in transformers.

    Args:
        vocab: ids by spelling.
        own: added tokens that the vocabulary itself has.
        beside: what stands beside it.

    Returns:
        The added tokens in the order of their ids, and the vocabulary with them.

    Raises:
        ModelLoadError: a token has two ids.
    """
    tokens = {**own, **_numbered(beside)}
    ids: dict[str, int] = dict(vocab)
    by_id = {token_id: text for text, token_id in ids.items()}
    for token_id, token in tokens.items():
        text = str(token["content"])
        if ids.get(text, token_id) != token_id:
            problem = f"the token {text[:100]!r} has two ids, {ids[text]} and {token_id}"
            raise ModelLoadError(f"{beside.where}: {problem}")
        if by_id.get(token_id, text) != text:
            del ids[by_id[token_id]]
        ids[text], by_id[token_id] = token_id, text
    next_id = 1 + max(by_id, default=-1)
    for text, switches in _special(beside):
        token_id = ids.setdefault(text, next_id)
        next_id = max(next_id, token_id + 1)
        if token_id not in tokens:
            tokens[token_id] = added_token(token_id, text, **{**switches, "special": True})
    return [tokens[token_id] for token_id in sorted(tokens)], ids


def _added(path: Path) -> tuple[tuple[str, int], ...]:
    found = read_json(path)
    if not all(type(token_id) is int and 0 <= token_id < _MAX_ADDED_ID for token_id in found.values()):
        raise ModelLoadError(f"{path} must give each token an id from 0 to {_MAX_ADDED_ID - 1}")
    return tuple((text, token_id) for text, token_id in found.items() if isinstance(token_id, int))


def _numbered(beside: Beside) -> dict[int, Json]:
    """Return the tokens that the files give an id."""
    tokens = {
        token_id: _token(token_id, {"content": text, "special": True}, beside)
        for text, token_id in beside.added
    }
    named = json.loads(beside.config_text).get("added_tokens_decoder")
    for key, value in (named if isinstance(named, dict) else {}).items():
        if not (_ID.fullmatch(key) and int(key) < _MAX_ADDED_ID and isinstance(value, dict)):
            raise ModelLoadError(f"{beside.where}: added_tokens_decoder of {_CONFIG} holds {key[:100]!r}")
        tokens[int(key)] = _token(int(key), value, beside)
    return tokens


def _token(token_id: int, value: Mapping[str, object], beside: Beside) -> Json:
    text = _content(value)
    if not text:
        raise ModelLoadError(f"{beside.where}: the added token {token_id} has no content")
    return added_token(token_id, text, **_switches(value))


def _special(beside: Beside) -> Iterator[tuple[str, dict[str, bool]]]:
    """Return the tokens with a role, and those in lists of special ones."""
    for values in (json.loads(beside.config_text), json.loads(beside.roles_text)):
        listed = [values.get(name) for name in _ROLES]
        for name in _LISTS:
            more = values.get(name)
            listed += more if isinstance(more, list) else more.values() if isinstance(more, dict) else []
        for value in listed:
            if text := _content(value):
                yield text, _switches(value)


def _content(value: object) -> str:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _switches(value: object) -> dict[str, bool]:
    return {name: isinstance(value, dict) and value.get(name) is True for name in _SWITCHES}
