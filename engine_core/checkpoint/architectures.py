"""The registry of architectures: which config.json can be served, and who reads it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from engine_core.checkpoint.decoder_config import read_llama, read_mistral, read_qwen2, read_qwen3
from engine_core.checkpoint.fields import Fields
from engine_core.checkpoint.gpt2_config import read_gpt2
from engine_core.checkpoint.model_config import ModelConfig
from engine_core.errors import ModelLoadError

logger = logging.getLogger(__name__)

ARCHITECTURES: dict[str, Callable[[Path, str, Fields], ModelConfig]] = {
    "GPT2LMHeadModel": read_gpt2,
    "LlamaForCausalLM": read_llama,
    "MistralForCausalLM": read_mistral,
    "Qwen2ForCausalLM": read_qwen2,
    "Qwen3ForCausalLM": read_qwen3,
}
"""From a name in `architectures` to the reader of its config.json, in the order in which errors list them."""


def read_model_config(directory: str | Path) -> ModelConfig:
    """Read and check config.json and generation_config.json of a checkpoint directory.

    Raises:
        ModelLoadError: names the file and the field that is missing, out of range or not supported, or the
            architecture if it is unknown.
    """
    path = Path(directory)
    if not path.is_dir():
        raise ModelLoadError(f"{path} is not a directory")
    config = Fields.from_file(path / "config.json")
    architecture = _architecture(config)
    if config.has("auto_map"):
        logger.warning("custom_code_ignored path=%s: auto_map in config.json is never executed", path)
    if config.has("quantization_config"):
        raise config.error("quantization_config", "is set, and quantised checkpoints are not supported")
    return ARCHITECTURES[architecture](path, architecture, config)


def _architecture(config: Fields) -> str:
    names = config.texts("architectures")
    for name in names:
        if name in ARCHITECTURES:
            return name
    asked = ", ".join(map(repr, names[:4]))[:200] or "none"
    raise config.error(
        "architectures", f"names {asked}, which is not supported; supported are {', '.join(ARCHITECTURES)}"
    )
