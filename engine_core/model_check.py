"""Whether a model can be served, as far as its files tell without torch; asked before anything is started."""

from __future__ import annotations

from pathlib import Path

from engine_core.checkpoint.check import check_model
from engine_core.checkpoint.text_files import check_text_files
from engine_core.config import EngineConfig


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
        from engine_core.executor.simulated_model import simulated_model

        # Made-up tokens need three fields of config.json, and nothing else.
        simulated_model(str(directory))
        return []
    model = check_model(directory).limited_to(config.max_model_len)
    if config.tokenizer_check:
        check_text_files(directory)
    if model.has_custom_code:
        return [f"custom_code_ignored path={directory}: auto_map in config.json is never executed"]
    return []
