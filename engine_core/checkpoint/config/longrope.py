"""How Phi-3's rotary embedding is read: the default kind, or longrope."""

from __future__ import annotations

import math

from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.rope_config import (
    MAX_FACTOR,
    RopeConfig,
    RopeShape,
    rope_fields,
)

# Names of the same kind in older files.
_LONGROPE = ("longrope", "su", "yarn")


def read_longrope(config: Fields, shape: RopeShape) -> RopeConfig:
    """Read the rotary parameters of Phi-3.

    Longrope has frequencies for sequences up to the trained context and others for longer ones. A cached key
    cannot change from one to the other, so the context that is served decides; see RopeConfig.

    Raises:
        ModelLoadError: names the field that is missing or out of range, or the type that is not supported.
    """
    rope = rope_fields(config)
    theta, share = shape.read(rope, config)
    rope_type = rope.text("rope_type", rope.text("type", "default"))
    if rope_type == "default":
        return RopeConfig(theta=theta, share=share)
    if rope_type not in _LONGROPE:
        raise rope.error("rope_type", f"must be default or longrope, got {rope_type!r}")
    original = config.integer("original_max_position_embeddings", 2, 2**22, 4096)
    factor = rope.number("factor", 1.0, MAX_FACTOR, max(1.0, shape.max_position_embeddings / original))
    attention_factor = math.sqrt(1 + math.log(factor) / math.log(original))
    return RopeConfig(
        rope_type="longrope",
        theta=theta,
        share=share,
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=rope.number("attention_factor", 0.0, 1e3, attention_factor),
        short_factors=_factors(rope, "short_factor", shape.rotary_dim(share) // 2),
        long_factors=_factors(rope, "long_factor", shape.rotary_dim(share) // 2),
    )


def _factors(rope: Fields, name: str, count: int) -> tuple[float, ...]:
    factors = rope.numbers(name, 1e-6, MAX_FACTOR) or ()
    if len(factors) != count:
        raise rope.error(name, f"must have {count} numbers from 1e-06 to {MAX_FACTOR:g}, got {len(factors)}")
    return factors
