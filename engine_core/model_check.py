"""Whether a model can be served, as far as its files tell without torch; asked before anything is started."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.adapter.files import Adapter
from splitserve.engine_core.checkpoint.check import check_model
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.draft_check import read_draft_config
from splitserve.engine_core.checkpoint.source import local_model
from splitserve.engine_core.checkpoint.text_files import check_text_files
from splitserve.engine_core.checkpoint.weight_files import Checkpoint
from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.adapter_settings import named_adapters
from splitserve.engine_core.settings.speculation import Speculation


def check_before_start(config: EngineConfig, directory: Path) -> list[str]:
    """Check the model that a configuration names.

    Args:
        config: of the engine.
        directory: of the model.

    Returns:
        What an operator should know of a model that can be served, a line each.

    Raises:
        ModelLoadError: it cannot be served; the message names the file.
        ConfigError: the configuration asks for more than the model can do.
    """
    if config.executor == "simulated":
        # numpy, which only this needs, takes longer to import than all that is checked below.
        from splitserve.engine_core.executor.simulated.model import simulated_model

        # Made-up tokens need three fields of config.json, and nothing else.
        simulated_model(str(directory))
        return []
    model = check_model(directory, config.model_impl).limited_to(config.max_model_len)
    for path in named_adapters(config.lora).values():
        with Adapter.open(Path(path), config.max_lora_rank):
            pass
    _check_quantization("--quantization", config.quantization, config.dtype, model)
    if config.speculation is not None:
        _check_speculation(config, config.speculation, model)
    if config.tokenizer_check:
        check_text_files(directory)
    return _notes(model)


def _check_speculation(config: EngineConfig, speculation: Speculation, model: ModelConfig) -> None:
    if model.encoder is not None or model.classifier is not None:
        raise ConfigError(f"{model.path} makes no text to draft: add --speculate none")
    if model.family == "transformers":
        raise ConfigError(
            f"--speculate works with the server's own layers, and {model.path} has those of transformers: "
            "add --speculate none"
        )
    method = speculation.model_method
    draft = local_model(speculation.model or model.path) if method else None
    if draft is None:
        # A hub id is checked once it is downloaded.
        return
    drafting = read_draft_config(str(draft), model, method)
    with Checkpoint.open(draft):
        own = speculation.quantization
        flag = "--speculative-config: quantization" if own else "--quantization"
        # A head computes with what the model has computed.
        computing = drafting if drafting.draft_head is None else model
        _check_quantization(flag, own or config.quantization, config.dtype, computing)


def _check_quantization(flag: str, quantization: str, dtype: str, model: ModelConfig) -> None:
    """Refuse what no device can do; a worker knows what its own cannot."""
    runs_in = model.dtype if dtype == "auto" else dtype
    if quantization != "none" and runs_in == "float32":
        raise ConfigError(
            f"{flag} {quantization} needs bfloat16 or float16 activations, and {model.path} runs in "
            "float32: add --dtype bfloat16"
        )


def _notes(model: ModelConfig) -> list[str]:
    notes = []
    if model.has_custom_code:
        notes.append(f"custom_code_ignored path={model.path}: auto_map in config.json is never executed")
    if model.quantization is not None:
        notes += [
            f"quantization_config_ignored path={model.path}: {note}" for note in model.quantization.notes
        ]
    unknown = [i for i in model.named_eos_token_ids if i not in model.eos_token_ids]
    if unknown:
        notes.append(
            f"eos_token_ignored path={model.path}: {unknown[:8]} of eos_token_id are not in the vocabulary "
            f"of {model.vocab_size} tokens, so no sequence ends there"
        )
    return notes
