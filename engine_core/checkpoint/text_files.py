"""What is wrong with the files that frontends read, as far as can be told without the tokenizers library."""

from __future__ import annotations

from pathlib import Path

import msgspec

from splitserve.engine_core.checkpoint.config.sampling_defaults import load_sampling_defaults
from splitserve.engine_core.checkpoint.files import read_file, read_json
from splitserve.engine_core.checkpoint.sentencepiece.tokenizer import make_tokenizer_json
from splitserve.engine_core.errors import ModelLoadError

TOKENIZER = "tokenizer.json"
_OPTIONAL = ("tokenizer_config.json", "special_tokens_map.json")
_CONVERTIBLE = ("vocab.json", "spiece.model", "tekken.json", "tiktoken.model", "qwen.tiktoken")


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
    """Return the contents of tokenizer.json, or what is made of tokenizer.model where there is none.

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


def _hint(directory: Path) -> str:
    only = "only tokenizer.json, or a SentencePiece tokenizer.model, is supported as a tokenizer"
    other = next((name for name in _CONVERTIBLE if (directory / name).exists()), "")
    if not other:
        return only
    return (
        f"{only}. Make it from {other} once, with the transformers library: "
        "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
    )
