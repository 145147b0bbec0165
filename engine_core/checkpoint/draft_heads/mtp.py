"""Which layer of a model predicts tokens farther ahead? The one behind its last, in the same checkpoint."""

from __future__ import annotations

import msgspec

from splitserve.engine_core.checkpoint.config.model_config import DraftHead, ModelConfig
from splitserve.engine_core.errors import ConfigError


def mtp_config(model: ModelConfig) -> ModelConfig:
    """Return the config of the first layer for multi-token prediction in a model's checkpoint.

    Args:
        model: limited to the context that is served.

    Raises:
        ConfigError: the model has none.
    """
    if not model.num_prediction_layers:
        raise ConfigError(
            f"{model.path} has no layers that predict tokens farther ahead: num_nextn_predict_layers of its "
            f"config.json is missing or 0, or not known of a {model.architecture}"
        )
    last = model.num_layers - 1
    experts = model.experts
    if experts is not None:
        experts = msgspec.structs.replace(experts, is_sparse=experts.is_sparse[last:])
    return msgspec.structs.replace(
        model,
        family="mtp",
        num_layers=1,
        sliding_windows=model.sliding_windows[last:],
        attention_scales=model.attention_scales[last:],
        ropes=model.ropes[last:],
        experts=experts,
        tie_word_embeddings=False,
        num_prediction_layers=0,
        draft_head=DraftHead(
            layer=f"layers.{model.num_layers}", read_layers=(model.num_layers,), read_size=model.hidden_size
        ),
    )
