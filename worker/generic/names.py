"""What are the tensors of a checkpoint called that fill the parameters of a library's model?"""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.weight_files import Checkpoint, has_weights
from splitserve.worker.generic.skeleton import refusal


class CheckpointNames:
    """Names in the checkpoint by names in the model; the library has renamed some since they were published.

    Args:
        config: of the checkpoint.
        model: as the library built it.

    Raises:
        ModelLoadError: a tensor becomes several, or several become one, while the library loads them.
    """

    def __init__(self, config: ModelConfig, model: PreTrainedModel) -> None:
        self._stored: dict[str, str] = {}
        path = Path(config.path)
        # Random weights have no files.
        if not has_weights(path):
            return
        transforms = get_model_conversion_mapping(model)
        with Checkpoint.open(path) as checkpoint:
            for tensor in checkpoint:
                name = tensor.name
                for transform in transforms:
                    renamed, pattern = transform.rename_source_key(name)
                    if pattern is not None and type(transform) is not WeightRenaming:
                        raise refusal(config, f"the library makes other tensors of {tensor.name!r}")
                    name = renamed
                if name != tensor.name:
                    self._stored[name] = tensor.name

    def __call__(self, name: str) -> str:
        """Return the name in the checkpoint of a parameter of the model."""
        return self._stored.get(name, name)
