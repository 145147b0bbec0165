"""Does a checkpoint make vectors of prompts instead of text, and how?

Read from what the sentence-transformers library keeps beside a model: modules.json lists the steps that a
text goes through, each with a folder of its own
(https://sbert.net/docs/sentence_transformer/usage/custom_models.html).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from splitserve.engine_core.checkpoint.config.fields import MAX_JSON_BYTES, Fields
from splitserve.engine_core.checkpoint.files import read_file
from splitserve.engine_core.errors import ModelLoadError

CONFIG = "config.json"
MODULES = "modules.json"
_LENGTHS = "sentence_bert_config.json"
_MAX_MODULES = 16
_MAX_TOKENS = 2**23
_MODE = "pooling_mode_"
_MODES = (
    "cls_token",
    "max_tokens",
    "mean_tokens",
    "mean_sqrt_len_tokens",
    "weightedmean_tokens",
    "lasttoken",
)


class Pooling(NamedTuple):
    """How the vector of a prompt is made: it is the last token's hidden state after the final norm.

    Attributes:
        normalizes: vectors are meant to be brought to length 1.
        max_tokens: longest prompt; 0 for the model's own limit.
    """

    normalizes: bool = True
    max_tokens: int = 0


def read_pooling(directory: Path, task: str, *, is_bare: bool = False) -> Pooling | None:
    """Return how a checkpoint makes vectors; None if it generates text.

    Args:
        directory: of the checkpoint.
        task: "auto" goes by modules.json and by is_bare, "embed" makes vectors without either, too,
            "generate" never does.
        is_bare: the model has no output head, so that it can do nothing else.

    Raises:
        ModelLoadError: names the file and what it asks for that is not supported.
    """
    if task == "generate":
        if is_bare:
            raise ModelLoadError(
                f"{directory / CONFIG} names a model without an output head, which generates no text: "
                "--task must be embed or auto"
            )
        return None
    path = directory / MODULES
    content = read_file(path, MAX_JSON_BYTES)
    if content is None:
        return Pooling() if task == "embed" or is_bare else None
    modules = _modules(content, path)
    names = [module.text("type", default="").rsplit(".", 1)[-1] for module in modules]
    if names[:2] != ["Transformer", "Pooling"] or names[2:] not in ([], ["Normalize"]):
        shown = ", ".join(names)[:200] or "none"
        raise ModelLoadError(
            f"{path}: modules must be Transformer, Pooling and perhaps Normalize, got {shown}"
        )
    _check_pooling(_inside(directory, modules[1]) / "config.json")
    if _inside(directory, modules[0]) != directory:
        raise modules[0].error("path", "must be empty: the model's files lie in the checkpoint's folder")
    return Pooling(normalizes=names[2:] == ["Normalize"], max_tokens=_max_tokens(directory))


def _modules(content: bytes, path: Path) -> list[Fields]:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(values, list) or len(values) > _MAX_MODULES:
        raise ModelLoadError(f"{path} must contain a list of at most {_MAX_MODULES} modules")
    if not all(isinstance(value, dict) for value in values):
        raise ModelLoadError(f"{path} must contain a list of JSON objects")
    return [Fields(value, f"{path}: modules[{i}]") for i, value in enumerate(values)]


def _inside(directory: Path, module: Fields) -> Path:
    """The folder of a module, which must not lie outside of the checkpoint's."""
    name = module.text("path", default="")
    if not name.isprintable() or Path(name).is_absolute() or ".." in Path(name).parts:
        raise module.error("path", f"must name a folder of the checkpoint, got {name[:200]!r}")
    return directory / name


def _check_pooling(path: Path) -> None:
    config = Fields.from_file(path)
    if config.has("pooling_mode"):
        modes = [config.text("pooling_mode", default="")]
    else:
        modes = [name.removeprefix(_MODE) for name in config.names_of_true() if name.startswith(_MODE)]
        for name in _MODES:
            config.boolean(f"{_MODE}{name}", False)
    if modes != ["lasttoken"]:
        got = ", ".join(modes)[:200] or "none"
        raise ModelLoadError(f"{path}: only the pooling mode lasttoken is supported, got {got}")
    if not config.boolean("include_prompt", True):
        raise config.error("include_prompt", "must be true or absent")


def _max_tokens(directory: Path) -> int:
    path = directory / _LENGTHS
    if read_file(path, MAX_JSON_BYTES) is None:
        return 0
    config = Fields.from_file(path)
    if config.boolean("do_lower_case", False):
        raise config.error("do_lower_case", "must be false or absent")
    return config.integer("max_seq_length", 1, _MAX_TOKENS) if config.has("max_seq_length") else 0
