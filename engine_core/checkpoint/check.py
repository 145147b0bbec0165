"""What is wrong with a checkpoint, as far as can be told without reading its weights, in under a second."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.weight_files import Checkpoint


def check_model(directory: Path, model_impl: str = "auto") -> ModelConfig:
    """Check config.json, generation_config.json, and the headers of all weight files.

    Args:
        directory: of the checkpoint.
        model_impl: as for read_model_config.

    Whether these are the tensors that the model needs is checked by the worker, which knows the layers, and
    does so before it allocates memory.

    Returns:
        The model that the worker will build.

    Raises:
        ModelLoadError: names the file and what is wrong with it.
    """
    config = read_model_config(directory, model_impl)
    with Checkpoint.open(directory):
        return config
