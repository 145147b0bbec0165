"""How much memory the intermediate results of a step take, estimated from the model's sizes."""

from __future__ import annotations

from typing import NamedTuple

from splitserve.engine_core.checkpoint.config.model_config import ExpertConfig, ModelConfig

_FLOAT_BYTES = 4
# Hidden states, the residual stream's deltas, and what norms make of them.
_HIDDEN_BUFFERS = 3


class StepSize(NamedTuple):
    """The largest step.

    Attributes:
        num_tokens: that it computes.
        num_logits: rows of logits that exist at once.
        itemsize: bytes of an activation.
        num_shares: ranks that share heads, and units of the MLP.
    """

    num_tokens: int
    num_logits: int
    itemsize: int
    num_shares: int = 1


def activation_bytes(config: ModelConfig, step: StepSize) -> int:
    """Return what the buffers of a step take; see device.workspace.

    Layers use the same buffers, so their number does not matter. What attention keeps besides is small.
    """
    shared = _attention_elements(config) + 3 * config.intermediate_size
    elements = _HIDDEN_BUFFERS * config.hidden_size + shared // step.num_shares
    token_bytes = elements * step.itemsize
    if config.experts is not None:
        token_bytes += _expert_bytes(config.experts, config.hidden_size, step)
    return step.num_tokens * token_bytes + step.num_logits * config.vocab_size * _FLOAT_BYTES


def _attention_elements(config: ModelConfig) -> int:
    """Queries, keys and values of a token, and what its heads have attended to."""
    latent = config.latent
    if latent is None:
        return 2 * (config.num_heads + config.num_kv_heads) * config.head_dim
    head = latent.query_dim + latent.size + latent.value_dim
    return config.num_heads * head + latent.query_rank + 2 * latent.cached_size


def _expert_bytes(experts: ExpertConfig, hidden_size: int, step: StepSize) -> int:
    """Inputs, inner values and outputs of the experts that a token passes."""
    inner = 3 * (experts.num_chosen * experts.inner_size + experts.shared_size) // step.num_shares
    elements = experts.num_chosen * hidden_size + inner
    return elements * step.itemsize + (experts.num_chosen + 1) * hidden_size * _FLOAT_BYTES
