"""modules.json: the steps that a text goes through in the sentence-transformers library, each with a folder.

See https://sbert.net/docs/sentence_transformer/usage/custom_models.html.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from splitserve.engine_core.checkpoint.config.field_files import MAX_JSON_BYTES, read_fields
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.files import read_file
from splitserve.engine_core.errors import ModelLoadError

MODULES = "modules.json"
_LIBRARY = "sentence_transformers"
_LENGTHS = "sentence_bert_config.json"
_MAX_MODULES = 16
_MAX_TOKENS = 2**23


class Module(NamedTuple):
    """A step.

    Attributes:
        kind: such as "Pooling".
        folder: of its files; the model itself has to lie in the checkpoint's.
    """

    kind: str
    folder: Path


def read_modules(directory: Path) -> list[Module] | None:
    """Return the modules of a checkpoint in their order; None if it names none.

    Raises:
        ModelLoadError: the file is damaged, or names a folder outside of the checkpoint's, or a class that is
            not the library's.
    """
    path = directory / MODULES
    content = read_file(path, MAX_JSON_BYTES)
    if content is None:
        return None
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(values, list) or len(values) > _MAX_MODULES:
        raise ModelLoadError(f"{path} must contain a list of at most {_MAX_MODULES} modules")
    if not all(isinstance(value, dict) for value in values):
        raise ModelLoadError(f"{path} must contain a list of JSON objects")
    return [_module(directory, Fields(value, f"{path}: modules[{i}]")) for i, value in enumerate(values)]


def _module(directory: Path, fields: Fields) -> Module:
    package, _, kind = fields.text("type", default="").rpartition(".")
    if package.partition(".")[0] != _LIBRARY:
        # A class of the same name in a checkpoint's own code, which is never run, may do something else.
        raise fields.error("type", f"must be a class of {_LIBRARY}, got {fields.text('type', '')[:200]!r}")
    name = fields.text("path", default="")
    if not name.isprintable() or Path(name).is_absolute() or ".." in Path(name).parts:
        raise fields.error("path", f"must name a folder of the checkpoint, got {name[:200]!r}")
    folder = directory / name
    if kind == "Transformer" and folder != directory:
        raise fields.error("path", "must be empty: the model's files lie in the checkpoint's folder")
    return Module(kind, folder)


def read_max_tokens(directory: Path) -> int:
    """Return the longest prompt that the library takes; 0 for the model's own limit.

    Raises:
        ModelLoadError: its file says something that is not supported.
    """
    path = directory / _LENGTHS
    if read_file(path, MAX_JSON_BYTES) is None:
        return 0
    config = read_fields(path)
    if config.boolean("do_lower_case", False):
        raise config.error("do_lower_case", "must be false or absent")
    # null is no limit, too.
    if not config.has("max_seq_length") or config.is_null("max_seq_length"):
        return 0
    return config.integer("max_seq_length", 1, _MAX_TOKENS)
