"""The small files of a checkpoint, made from a GGUF file's metadata: config.json and those of the tokenizer.

So whatever reads a checkpoint's folder reads a GGUF file: files.read_file() asks here for a file "in" it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.gguf.architectures import common_config, find_architecture
from splitserve.engine_core.checkpoint.gguf.gguf_file import GgufContents, is_gguf, read_contents
from splitserve.engine_core.checkpoint.gguf.tokenizer import (
    end_ids,
    make_tokenizer,
    make_tokenizer_config,
    read_vocabulary,
)


def made_file(path: Path, name: str) -> bytes | None:
    """Return a file of a checkpoint that a GGUF file stands for; None if it has none of this name.

    Args:
        path: of the GGUF file; of any other there are none.
        name: such as "config.json".

    Raises:
        ModelLoadError: the file is damaged, or says something that is not supported.
    """
    if name not in _MAKERS or not is_gguf(path):
        return None
    return _made(read_contents(path), name)


@functools.lru_cache(4)
def _made(contents: GgufContents, name: str) -> bytes:
    return json.dumps(_MAKERS[name](contents), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _config(contents: GgufContents) -> dict[str, object]:
    architecture, described = find_architecture(contents)
    config = {**common_config(described), **architecture.read(described)}
    embedding = contents.header.tensors["token_embd.weight"]
    config["dtype"] = "float32" if embedding.dtype == "F32" else "bfloat16"
    config["eos_token_id"] = end_ids(described.metadata)
    return config


def _tokenizer(contents: GgufContents) -> dict[str, object]:
    return make_tokenizer(read_vocabulary(_metadata(contents)))


def _tokenizer_config(contents: GgufContents) -> dict[str, object]:
    return make_tokenizer_config(read_vocabulary(_metadata(contents)))


def _metadata(contents: GgufContents) -> Fields:
    return Fields(contents.header.metadata, f"{contents.path}: metadata")


_MAKERS: dict[str, Callable[[GgufContents], dict[str, object]]] = {
    "config.json": _config,
    "tokenizer.json": _tokenizer,
    "tokenizer_config.json": _tokenizer_config,
}
