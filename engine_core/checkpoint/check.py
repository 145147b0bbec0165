"""What is wrong with a checkpoint, as far as can be told without reading its weights, in under a second."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.weight_files import Checkpoint


def check_model(directory: Path) -> ModelConfig:
    """Check config.json, generation_config.json, and the headers of all weight files.

    Whether these are the tensors that the model needs is checked by the worker, which knows the layers, and
    does so before it allocates memory.

    Returns:
        The model that the worker will build.

    Raises:
        ModelLoadError: names the file and what is wrong with it.
    """
    config = read_model_config(directory)
    with Checkpoint.open(directory):
        return config
