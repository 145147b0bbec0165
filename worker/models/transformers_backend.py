"""The entry to worker.generic, which imports the transformers library: a second that only its models take."""

from __future__ import annotations

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.worker.attention.base import AttentionBackend
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.models.base import Model


def build(ctx: LayerContext, config: ModelConfig) -> Model:
    """Return the model with its weights declared but not allocated.

    Raises:
        ModelLoadError: the library does not know it, or one of its layers asks for what is not computed here.
        ConfigError: the layers cannot be shared by these ranks, or the device is not the CPU.
    """
    from splitserve.worker.generic.model import TransformersModel

    return TransformersModel(ctx, config)


def check(model: Model, config: ModelConfig, backend: AttentionBackend) -> None:
    """Compare a loaded model with what the library computes, and find out whether it can be recorded.

    Raises:
        ModelLoadError: they differ.
    """
    from splitserve.worker.generic.check import check_agreement
    from splitserve.worker.generic.model import TransformersModel
    from splitserve.worker.generic.record_check import check_recording

    assert isinstance(model, TransformersModel), "a family's check gets its own models"
    check_agreement(model, config, backend)
    check_recording(model, config, backend)


def windows(model: Model) -> tuple[int, ...]:
    """Return per layer how many tokens a query sees, including itself; 0 for all."""
    from splitserve.worker.generic.model import TransformersModel

    assert isinstance(model, TransformersModel), "a family is asked of its own models"
    return model.sliding_windows
