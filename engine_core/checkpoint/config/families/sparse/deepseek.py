"""DeepSeek V2 and V3, and what has their layout (R1, Kimi K2): latent attention, experts in groups."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from splitserve.engine_core.checkpoint.config.common_fields import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_WIDTH,
)
from splitserve.engine_core.checkpoint.config.decoder_config import Defaults, read_decoder
from splitserve.engine_core.checkpoint.config.expert_fields import MAX_EXPERTS, ExpertFields, with_experts
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.layer_windows import no_windows
from splitserve.engine_core.checkpoint.config.model_config import ExpertGroups, LatentConfig, ModelConfig
from splitserve.engine_core.checkpoint.config.rope_config import RopeConfig, rope_fields
from splitserve.engine_core.checkpoint.config.traits import AttentionTraits, DecoderTraits, ExpertTraits

# What the kernels take: sizes in the cache are multiples of the first.
LATENT_UNIT, MAX_LATENT, MAX_ROTARY = 32, 512, 128
_MAX_SHARED = 64
# Of the norms within the attention, whatever rms_norm_eps says.
_INNER_EPS = 1e-6
_EXPERTS = ExpertTraits(shared="mlp.shared_experts")


def read_deepseek_v2(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a DeepseekV2ForCausalLM.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    _refuse(config, "mlp_bias")
    # The library ignores it, and the published code scales such weights no more.
    _refuse(config, "norm_topk_prob")
    model = _read(path, architecture, config, 2048)
    method = _named(config, "topk_method", ("greedy", "group_limited_greedy"))
    _named(config, "scoring_func", ("softmax",))
    groups = ExpertGroups(scaling=config.number("routed_scaling_factor", 1e-6, 1e5, 1.0))
    if method != "greedy":
        groups = _grouped(config, groups, None, None)
    return _with_experts(config, model, groups, _V2_FIELDS, adds_up=False, first_sparse=0, shared=2)


def read_deepseek_v3(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a DeepseekV3ForCausalLM; see read_deepseek_v2."""
    is_interleaved = config.boolean("rope_interleave", True)
    model = _read(path, architecture, config, 4096, is_interleaved=is_interleaved)
    assert model.latent is not None
    turned = model.latent.rotary_dim
    if config.has("head_dim") and (found := config.integer("head_dim", 1, MAX_WIDTH)) != turned:
        raise config.error("head_dim", f"must be absent or qk_rope_head_dim ({turned}), got {found}")
    _named(config, "topk_method", ("noaux_tc",))
    _named(config, "scoring_func", ("sigmoid",))
    groups = ExpertGroups(
        is_sigmoid=True,
        counts_two=True,
        has_bias=True,
        scaling=config.number("routed_scaling_factor", 1e-6, 1e5, 2.5),
    )
    groups = _grouped(config, groups, 8, 4)
    adds_up = config.boolean("norm_topk_prob", True)
    model = _with_experts(config, model, groups, _V3_FIELDS, adds_up=adds_up, first_sparse=3, shared=1)
    predicting = (
        0
        if config.is_null("num_nextn_predict_layers")
        else config.integer("num_nextn_predict_layers", 0, MAX_LAYERS, 0)
    )
    return msgspec.structs.replace(model, num_prediction_layers=predicting)


_V2_FIELDS = ExpertFields(("n_routed_experts",), "moe_intermediate_size", None)
_V3_FIELDS = ExpertFields(("n_routed_experts",), "moe_intermediate_size", 8)


def _read(
    path: Path, architecture: str, config: Fields, max_positions: int, *, is_interleaved: bool = True
) -> ModelConfig:
    """Read everything but the experts."""
    _refuse(config, "attention_bias")
    num_heads = config.integer("num_attention_heads", 1, MAX_HEADS)
    if config.has("num_key_value_heads") and config.integer("num_key_value_heads", 1, MAX_HEADS) != num_heads:
        raise config.error(
            "num_key_value_heads",
            f"must be absent or num_attention_heads ({num_heads}): heads share a latent",
        )
    latent = _read_latent(config)
    attention = AttentionTraits(is_rotary_interleaved=is_interleaved)
    traits = DecoderTraits(attention=attention, experts=_EXPERTS)
    defaults = Defaults(max_positions=max_positions, windows=no_windows, turned_dim=latent.rotary_dim)
    model = read_decoder(path, architecture, config, defaults, traits)
    (rope,) = set(model.ropes)
    assert rope is not None, "all layers turn"
    scale = _scale(config, rope, latent.query_dim)
    return msgspec.structs.replace(
        model,
        head_dim=latent.cached_size,
        latent=latent,
        attention_scales=(scale,) * model.num_layers,
    )


def _read_latent(config: Fields) -> LatentConfig:
    query_rank = 0 if config.is_null("q_lora_rank") else config.integer("q_lora_rank", 1, MAX_WIDTH, 1536)
    return LatentConfig(
        query_rank=query_rank,
        size=_cached_size(config, "kv_lora_rank", MAX_LATENT, 512),
        rotary_dim=_cached_size(config, "qk_rope_head_dim", MAX_ROTARY, 64),
        plain_dim=_head_size(config, "qk_nope_head_dim"),
        value_dim=_head_size(config, "v_head_dim"),
        norm_eps=_INNER_EPS,
    )


def _cached_size(config: Fields, name: str, limit: int, default: int) -> int:
    size = config.integer(name, 1, limit, default)
    if size % LATENT_UNIT:
        raise config.error(name, f"must be a multiple of {LATENT_UNIT}, got {size}")
    return size


def _head_size(config: Fields, name: str) -> int:
    size = config.integer(name, 1, MAX_HEAD_DIM, 128)
    if size % 8:
        raise config.error(name, f"must be a multiple of 8, got {size}")
    return size


def _scale(config: Fields, rope: RopeConfig, query_dim: int) -> float:
    """Return the factor of scores: extended contexts have a larger one if the rotary parameters say so."""
    scale: float = query_dim**-0.5
    mscale = rope_fields(config).number("mscale_all_dim", 0.0, 1e3, 0.0)
    if rope.rope_type == "default" or rope.factor <= 1.0 or not mscale:
        return scale
    larger = 0.1 * mscale * math.log(rope.factor) + 1.0
    return scale * larger * larger


def _grouped(
    config: Fields, groups: ExpertGroups, default_groups: int | None, default_chosen: int | None
) -> ExpertGroups:
    """Read the groups of experts, which must hold as many as a token passes."""
    num_experts = config.integer("n_routed_experts", 1, MAX_EXPERTS)
    num_groups = config.integer("n_group", 1, num_experts, default_groups)
    num_chosen = config.integer("topk_group", 1, num_groups, default_chosen)
    size = num_experts // num_groups
    if num_experts % num_groups or (groups.counts_two and size < 2):
        raise config.error(
            "n_group", f"({num_groups}) must divide the {num_experts} experts into groups of two or more"
        )
    needed = config.integer("num_experts_per_tok", 1, num_experts, 8)
    if num_chosen * size < needed:
        raise config.error("topk_group", f"({num_chosen}) groups of {size} do not hold {needed} experts")
    return msgspec.structs.replace(groups, num_groups=num_groups, num_chosen=num_chosen)


def _with_experts(
    config: Fields,
    model: ModelConfig,
    groups: ExpertGroups,
    fields: ExpertFields,
    *,
    adds_up: bool,
    first_sparse: int,
    shared: int,
) -> ModelConfig:
    """Return a model with experts in its sparse layers: from one on, every n-th."""
    count = (
        0
        if config.is_null("n_shared_experts")
        else config.integer("n_shared_experts", 0, _MAX_SHARED, shared)
    )
    width = config.integer("moe_intermediate_size", 1, MAX_WIDTH)
    model = with_experts(config, model, fields, adds_up=adds_up, shared_size=count * width)
    first = config.integer("first_k_dense_replace", 0, MAX_LAYERS, first_sparse)
    step = config.integer("moe_layer_freq", 1, MAX_LAYERS, 1)
    is_sparse = tuple(i >= first and i % step == 0 for i in range(model.num_layers))
    if not any(is_sparse):
        return msgspec.structs.replace(model, experts=None)
    assert model.experts is not None
    experts = msgspec.structs.replace(model.experts, groups=groups, is_sparse=is_sparse)
    return msgspec.structs.replace(model, experts=experts)


def _named(config: Fields, name: str, known: tuple[str, ...]) -> str:
    value = config.text(name, known[0])
    if value not in known:
        raise config.error(name, f"must be {' or '.join(map(repr, known))}, got {value!r}")
    return value


def _refuse(config: Fields, name: str) -> None:
    if config.boolean(name, False):
        raise config.error(name, "must be false or absent: it is not supported")
