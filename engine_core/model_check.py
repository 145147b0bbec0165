"""Whether a model can be served, as far as its files tell without torch; asked before anything is started."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.adapter.files import Adapter
from splitserve.engine_core.checkpoint.check import check_model
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.draft_check import read_draft_config
from splitserve.engine_core.checkpoint.source import local_model
from splitserve.engine_core.checkpoint.text_files import check_text_files
from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.settings.adapter_settings import named_adapters


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
    method = "" if config.speculation is None else config.speculation.model_method
    if config.speculation is not None and method:
        draft = local_model(config.speculation.model or str(directory))
        # A hub id is checked once it is downloaded.
        if draft is not None:
            read_draft_config(str(draft), model, method)
    if config.tokenizer_check:
        check_text_files(directory)
    return _notes(model)


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
