"""What is wrong with the files that frontends read, as far as can be told without the tokenizers library."""

from __future__ import annotations

from pathlib import Path

import msgspec

from splitserve.engine_core.checkpoint.config.sampling_defaults import load_sampling_defaults
from splitserve.engine_core.checkpoint.files import read_file, read_json
from splitserve.engine_core.checkpoint.tokenizer.source import (
    VOCABULARIES,
    make_tokenizer_json,
    vocabulary_roles,
)
from splitserve.engine_core.errors import ModelLoadError

TOKENIZER = "tokenizer.json"
_OPTIONAL = ("tokenizer_config.json", "special_tokens_map.json")
_TOKEN_ROLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
# Vocabularies whose code alone says how they are read.
_CONVERTIBLE = ("*.tiktoken", "spm.model", "*.spm", "*.bpe", "*.vocab", "vocab*")


class _Tokenizer(msgspec.Struct):
    """The minimum that tokenizer.json must contain; its model is read by the tokenizers library."""

    model: dict[str, msgspec.Raw]


def check_text_files(directory: Path) -> None:
    """Check tokenizer.json and the files that belong to it, including generation_config.json.

    Raises:
        ModelLoadError: names the file that is missing or invalid.
    """
    description = read_tokenizer_json(directory)
    try:
        msgspec.json.decode(description, type=_Tokenizer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelLoadError(f"{directory / TOKENIZER} does not describe a tokenizer: {error}") from error
    for name in _OPTIONAL:
        read_json(directory / name)
    read_file(directory / "chat_template.jinja")
    load_sampling_defaults(directory)


def read_tokenizer_json(directory: Path) -> bytes:
    """Return the contents of tokenizer.json, or what is made of another vocabulary where there is none.

    Raises:
        ModelLoadError: both are missing, or cannot be read; see read_file() and make_tokenizer_json().
    """
    path = directory / TOKENIZER
    description = read_file(path)
    if description is None:
        description = make_tokenizer_json(directory)
    if description is None:
        raise ModelLoadError(f"{path} does not exist: {_hint(directory)}")
    return description


def read_named_tokens(directory: Path) -> dict[str, str]:
    """Return the texts of the tokens with a role, "bos_token" and the like, as far as files name any.

    tokenizer_config.json goes before special_tokens_map.json, and both before what a vocabulary has by itself
    that stands in the place of tokenizer.json. Each gives a token as a string or as an AddedToken object.

    Raises:
        ModelLoadError: a file cannot be read.
    """
    configs = [read_json(directory / name) for name in _OPTIONAL]
    usual = {} if (directory / TOKENIZER).exists() else vocabulary_roles(directory)
    found: dict[str, str] = {}
    for name in _TOKEN_ROLES:
        texts = (_content(config.get(name)) for config in configs)
        text = next((text for text in texts if text is not None), None)
        if text is None and not any(name in config for config in configs):
            text = usual.get(name)
        if text is not None:
            found[name] = text
    return found


def _content(value: object) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _hint(directory: Path) -> str:
    read = f"without it one of {', '.join(VOCABULARIES)} is read"
    other = next((path for pattern in _CONVERTIBLE for path in sorted(directory.glob(pattern))), None)
    if other is None:
        return read
    return (
        f"{read}, and how {other.name} is to be read is not known. Make it once, with the transformers "
        "library: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
    )
