"""How config.json describes the experts of sparse layers: fields that several families have."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from splitserve.engine_core.checkpoint.config.common_fields import MAX_LAYERS, MAX_WIDTH
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.model_config import ExpertConfig, ModelConfig

# Twice the most that have been published in one layer; the kernels keep as many places.
MAX_EXPERTS = 1024


class ExpertFields(NamedTuple):
    """What a family calls the sizes of its experts.

    Attributes:
        num_experts: names of the number of experts, of which the first that is there counts.
        inner_size: of an expert's inner width.
        default_chosen: default of num_experts_per_tok; None: it is required.
    """

    num_experts: tuple[str, ...]
    inner_size: str
    default_chosen: int | None


def with_experts(
    config: Fields, model: ModelConfig, names: ExpertFields, *, adds_up: bool, shared_size: int = 0
) -> ModelConfig:
    """Return a model with experts in all its layers.

    Args:
        config: of the checkpoint.
        model: without experts.
        names: of the fields.
        adds_up: see ExpertConfig.
        shared_size: see ExpertConfig.

    Raises:
        ModelLoadError: names the field that is missing or out of range.
    """
    name = next(filter(config.has, names.num_experts), names.num_experts[0])
    num_experts = config.integer(name, 1, MAX_EXPERTS)
    experts = ExpertConfig(
        num_experts=num_experts,
        num_chosen=config.integer("num_experts_per_tok", 1, num_experts, names.default_chosen),
        inner_size=config.integer(names.inner_size, 1, MAX_WIDTH),
        shared_size=shared_size,
        adds_up=adds_up,
        is_sparse=(True,) * model.num_layers,
    )
    return msgspec.structs.replace(model, experts=experts)


def with_qwen_steps(config: Fields, model: ModelConfig) -> ModelConfig:
    """Return a model with experts in Qwen's sparse layers only.

    They are every `decoder_sparse_step`-th layer but those in `mlp_only_layers`.

    Raises:
        ModelLoadError: names the field.
    """
    assert model.experts is not None
    step = config.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
    dense = set(config.integers("mlp_only_layers", 0, MAX_LAYERS) or ())
    is_sparse = tuple((i + 1) % step == 0 and i not in dense for i in range(model.num_layers))
    experts = msgspec.structs.replace(model.experts, is_sparse=is_sparse) if any(is_sparse) else None
    return msgspec.structs.replace(model, experts=experts)
