"""Which vocabulary a checkpoint without tokenizer.json has, and tokenizer.json made of it.

Nothing of a checkpoint is run. What is made is what the tokenizers library needs to read texts as the
vocabulary's own library does; a vocabulary of which that is not known is refused by name.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from splitserve.engine_core.checkpoint.files import read_file
from splitserve.engine_core.checkpoint.sentencepiece.tokenizer import make_from_pieces
from splitserve.engine_core.checkpoint.tokenizer.beside import Beside, Made, read_beside
from splitserve.engine_core.checkpoint.tokenizer.tekken import make_from_tekken
from splitserve.engine_core.checkpoint.tokenizer.tiktoken import is_tiktoken, make_from_ranks
from splitserve.engine_core.checkpoint.tokenizer.vocab_files import make_from_merges, make_from_words


def _make_from_either(files: tuple[bytes, ...], beside: Beside) -> Made:
    return (make_from_ranks if is_tiktoken(files[0]) else make_from_pieces)(files, beside)


_Maker = Callable[[tuple[bytes, ...], Beside], Made]
# In this order; a second file belongs to the first.
_MAKERS: dict[tuple[str, ...], _Maker] = {
    ("tokenizer.model",): _make_from_either,
    ("sentencepiece.bpe.model",): make_from_pieces,
    ("spiece.model",): make_from_pieces,
    ("tiktoken.model",): make_from_ranks,
    ("qwen.tiktoken",): make_from_ranks,
    ("tekken.json",): make_from_tekken,
    ("vocab.json", "merges.txt"): make_from_merges,
    ("vocab.txt",): make_from_words,
}
VOCABULARIES = tuple(names[0] for names in _MAKERS)


class _Kept(NamedTuple):
    """What is made of a checkpoint's vocabulary: tokenizer.json, and tokens by their roles."""

    description: bytes
    roles: dict[str, str]


def make_tokenizer_json(directory: Path) -> bytes | None:
    """Return tokenizer.json of a checkpoint without one; None if it has no other vocabulary either.

    Making it takes a second or two for large vocabularies; the last few are kept.

    Raises:
        ModelLoadError: a file is damaged, or asks for what is not supported.
    """
    made = _make(directory)
    return None if made is None else made.description


def vocabulary_roles(directory: Path) -> dict[str, str]:
    """Return the tokens that such a vocabulary has for "bos_token" and the like, if nothing beside it does.

    Raises:
        ModelLoadError: as make_tokenizer_json().
    """
    made = _make(directory)
    return {} if made is None else dict(made.roles)


def _make(directory: Path) -> _Kept | None:
    for names in _MAKERS:
        data = [read_file(directory / name) for name in names]
        if data[0] is not None:
            parts = tuple(part for part in data if part is not None)
            return _made(names, parts, read_beside(directory, directory / names[0]))
    return None


@functools.lru_cache(4)
def _made(names: tuple[str, ...], data: tuple[bytes, ...], beside: Beside) -> _Kept:
    if len(data) < len(names):
        raise beside.error(f"{names[1]} is missing")
    made = _MAKERS[names](data, beside)
    description = json.dumps(made.description, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return _Kept(description, made.roles)
