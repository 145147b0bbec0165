"""What a directory is that contains no Hugging Face checkpoint, and what the user can do about it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from splitserve.engine_core.checkpoint.config.field_files import read_fields
from splitserve.engine_core.errors import ModelLoadError

_MAX_ENTRIES = 10_000
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_OTHER_SUFFIXES = (".h5", ".msgpack", ".onnx", ".pb", ".tflite", ".npz")


def explain(directory: Path) -> str:
    """Describe what a directory contains instead of config.json or weights.

    Raises:
        ModelLoadError: it cannot be listed.
    """
    try:
        names = sorted(path.name for path in itertools.islice(directory.iterdir(), _MAX_ENTRIES))
    except OSError as error:
        raise ModelLoadError(f"{directory} cannot be read: {error.strerror}") from error
    found = (describe(directory, names) for describe in _DESCRIBERS)
    return next(filter(None, found), "it holds no model")


def _nothing(directory: Path, names: list[str]) -> str:
    return "" if names else "the directory is empty"


def _adapter(directory: Path, names: list[str]) -> str:
    if "adapter_config.json" not in names:
        return ""
    base = read_fields(directory / "adapter_config.json").text("base_model_name_or_path", "its base model")
    return (
        f"it holds an adapter for {base[:200]}, not a model: serve that one with --lora NAME={directory}, or "
        "merge the two (merge_and_unload of the peft library)"
    )


def _gguf(directory: Path, names: list[str]) -> str:
    name = _first(names, (".gguf",))
    if not name:
        return ""
    return f"it holds GGUF weights: name the file itself, {directory / name}"


def _authors_layout(directory: Path, names: list[str]) -> str:
    if "params.json" not in names:
        return ""
    return (
        "it is in its authors' layout (params.json): take the same model in Hugging Face layout, or convert "
        "it with the scripts of the transformers library"
    )


def _pickle(directory: Path, names: list[str]) -> str:
    name = _first(names, _PICKLE_SUFFIXES)
    if not name:
        return ""
    return (
        f"it holds only pickle weights ({name}). Unpickling runs code from the file, so pickle checkpoints "
        "are not loaded; convert it to safetensors first"
    )


def _other_framework(directory: Path, names: list[str]) -> str:
    name = _first(names, _OTHER_SUFFIXES)
    return f"it holds weights of another framework ({name}): convert it to safetensors first" if name else ""


def _unnamed_safetensors(directory: Path, names: list[str]) -> str:
    name = _first(names, (".safetensors",))
    return f"it holds {name}, which belongs to a checkpoint that is not whole" if name else ""


def _folder_of_models(directory: Path, names: list[str]) -> str:
    inner = next((name for name in names if (directory / name / "config.json").is_file()), "")
    return f"it holds the model {directory / inner}" if inner else ""


def _first(names: list[str], suffixes: tuple[str, ...]) -> str:
    return next((name for name in names if name.endswith(suffixes)), "")


_DESCRIBERS: tuple[Callable[[Path, list[str]], str], ...] = (
    _nothing,
    _adapter,
    _gguf,
    _authors_layout,
    _pickle,
    _other_framework,
    _unnamed_safetensors,
    _folder_of_models,
)
