"""What do the attention layers of a library's model ask for? A trial on torch's meta device tells."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.worker.generic.attention import AttentionHook, LayerAttention, UnsupportedAttentionError
from splitserve.worker.generic.skeleton import refusal

_TRIAL_TOKENS = 4


def try_out(
    config: ModelConfig,
    model: PreTrainedModel,
    hook: AttentionHook,
    num_layers: int,
    fault: str = "look at values while they run",
) -> list[LayerAttention]:
    """Run the model on the meta device; return what its attention layers ask for, in their order.

    Args:
        config: of the checkpoint.
        model: on that device.
        hook: its attention.
        num_layers: how many it has to have.
        fault: what its layers do if it cannot be run there.

    Raises:
        ModelLoadError: it cannot be run there, or asks for what the paged attention does not compute.
    """
    layers = hook.trial()
    positions = torch.arange(_TRIAL_TOKENS, device="meta").unsqueeze(0)
    try:
        with torch.inference_mode():
            model(
                input_ids=torch.zeros_like(positions),
                position_ids=positions,
                attention_mask=torch.ones_like(positions, dtype=torch.bool),
                use_cache=False,
            )
    except UnsupportedAttentionError as error:
        raise refusal(config, error) from error
    except Exception as error:
        # Such as one whose frequencies depend on the longest sequence of a batch.
        raise refusal(config, f"its layers {fault} ({error})") from error
    if len(layers) != num_layers:
        raise refusal(config, f"{len(layers)} of its {num_layers} layers have attention")
    sizes = {layer[1:3] for layer in layers}
    if len(sizes) != 1:
        raise refusal(config, f"KV heads and head sizes differ between layers: {sorted(sizes)}")
    _, num_kv_heads, head_dim, _ = layers[0]
    if head_dim % 8 or head_dim > 256:
        raise refusal(config, f"heads of {head_dim} elements; it must be a multiple of 8 up to 256")
    if any(layer.num_heads % num_kv_heads for layer in layers):
        raise refusal(config, f"{num_kv_heads} KV heads do not divide the query heads")
    if model.base_model is model:
        raise refusal(config, "its layers cannot be told from its head")
    return layers
