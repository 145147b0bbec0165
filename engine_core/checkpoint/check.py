"""All faults of a checkpoint that can be found before its weights are read, in well under a second."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.weight_files import Checkpoint


def check_model(directory: Path) -> ModelConfig:
    """Check config.json, generation_config.json, and the headers of all weight files.

    Whether the tensors are those that the model needs is the worker's to say: it knows the layers, and says
    so before it takes memory.

    Returns:
        What the worker will build.

    Raises:
        ModelLoadError: names the file and what is wrong with it.
    """
    config = read_model_config(directory)
    with Checkpoint.open(directory):
        return config
