"""Which rotary embedding a checkpoint uses, according to `rope_scaling`, `rope_parameters` or both."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from splitserve.engine_core.checkpoint.config.fields import Fields

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
MAX_FACTOR = 1e6


class RopeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of the rotary frequencies, complete: defaults are filled in.

    Attributes:
        rope_type: one of ROPE_TYPES, or "longrope".
        theta: base of the frequencies.
        share: of each head that turns, its first elements.
        factor: by how much the trained context is extended.
        original_max_position_embeddings: trained context in tokens (llama3, yarn, longrope).
        low_freq_factor, high_freq_factor: limits of the llama3 interpolation.
        attention_factor: multiplies cos and sin (yarn, longrope), 1 otherwise.
        beta_fast, beta_slow: limits of the yarn ramp, in rotations over the trained context.
        truncate: whether the yarn limits are rounded outward to whole dimensions.
        short_factors, long_factors: divide the frequencies of each pair of dimensions (longrope): the first
            where no sequence longer than the trained context is served, otherwise the others.
    """

    rope_type: str = "default"
    theta: float = 10000.0
    share: float = 1.0
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def extended_len(self, max_position_embeddings: int) -> int:
        """Return the context in tokens that the checkpoint supports.

        Only yarn configs state the trained length in max_position_embeddings and support factor times as
        much. "dynamic" equals "default" up to max_position_embeddings; beyond it the frequencies would depend
        on the length of the sequence, which a KV cache cannot support, so that is the limit.
        """
        if self.rope_type != "yarn":
            return max_position_embeddings
        return max(max_position_embeddings, int(self.original_max_position_embeddings * self.factor))


class RopeShape(NamedTuple):
    """What the rotary parameters of a config.json depend on.

    Attributes:
        head_dim: elements of a head.
        max_position_embeddings: of the config.
        theta: default of rope_theta.
        share: default of partial_rotary_factor; 0: the family turns whole heads only.
    """

    head_dim: int
    max_position_embeddings: int
    theta: float = 10000.0
    share: float = 0.0

    def rotary_dim(self, share: float) -> int:
        """Return how many elements of a head turn."""
        return int(self.head_dim * share)

    def read(self, rope: Fields, config: Fields) -> tuple[float, float]:
        """Return the base of the frequencies and the share of a head that turns.

        Args:
            rope: the rotary parameters, which take precedence.
            config: what they are a part of.

        Raises:
            ModelLoadError: one of them is out of range or not supported.
        """
        theta = rope.number("rope_theta", 1.0, 1e15, config.number("rope_theta", 1.0, 1e15, self.theta))
        default = self.share or 1.0
        share = 0.0
        for fields in (config, rope):
            share = fields.number("partial_rotary_factor", 0.0, 1.0, share or default)
            turned = self.rotary_dim(share)
            if share != 1.0 and not self.share:
                raise fields.error(
                    "partial_rotary_factor",
                    f"must be 1, got {share:g}: this architecture turns whole heads only",
                )
            if turned < 2 or turned % 2:
                raise fields.error(
                    "partial_rotary_factor",
                    f"({share:g}) turns {turned} elements of a head of {self.head_dim}; "
                    "it must be an even number from 2 on",
                )
        return theta, share


def read_rope_config(config: Fields, shape: RopeShape) -> RopeConfig:
    """Read the rotary parameters of a config.json as transformers merges them.

    Raises:
        ModelLoadError: names the field that is out of range, or the rope type that is not supported.
    """
    return read_rope(rope_fields(config), shape, config)


def read_rope(rope: Fields, shape: RopeShape, config: Fields | None = None) -> RopeConfig:
    """Read rotary parameters.

    Args:
        rope: the parameters.
        shape: what they depend on.
        config: of the model, which may have some of them at its top level; None: they do not count.

    Raises:
        ModelLoadError: names the field that is out of range, or the rope type that is not supported.
    """
    config = Fields({}, rope.where) if config is None else config
    theta, share = shape.read(rope, config)
    rope_type = rope.text("rope_type", rope.text("type", "default"))
    if rope_type == "default":
        return RopeConfig(theta=theta, share=share)
    if rope_type in ("linear", "dynamic"):
        factor = rope.number("factor", 1.0, MAX_FACTOR)
        return RopeConfig(rope_type=rope_type, theta=theta, share=share, factor=factor)
    if rope_type not in ROPE_TYPES:
        raise rope.error("rope_type", f"must be one of {', '.join(ROPE_TYPES)}, got {rope_type!r}")
    # At the top level of the file, as introduced by Phi-3, it takes precedence over the parameters' own.
    fields = config if config.has("original_max_position_embeddings") else rope
    original = fields.integer("original_max_position_embeddings", 1, 2**22, shape.max_position_embeddings)
    if rope_type == "llama3":
        scaled = _read_llama3(rope, theta, original)
    else:
        scaled = _read_yarn(rope, theta, original, shape.max_position_embeddings)
    return msgspec.structs.replace(scaled, share=share)


def rope_fields(config: Fields) -> Fields:
    """Return the parameters: `rope_scaling` if both exist, as it was added to a newer file on purpose."""
    for name in ("rope_scaling", "rope_parameters"):
        rope = config.nested(name)
        if rope is not None and not rope.is_empty:
            if nested := rope.names_of_objects():
                raise rope.error(nested[0], "gives rotary parameters per layer type, which is not supported")
            return rope
    return Fields({}, config.where)


def _read_llama3(rope: Fields, theta: float, original: int) -> RopeConfig:
    low = rope.number("low_freq_factor", 1e-3, MAX_FACTOR)
    high = rope.number("high_freq_factor", 1e-3, MAX_FACTOR)
    if high <= low:
        raise rope.error("high_freq_factor", f"must be above low_freq_factor ({low:g}), got {high:g}")
    return RopeConfig(
        rope_type="llama3",
        theta=theta,
        factor=rope.number("factor", 1.0, MAX_FACTOR),
        original_max_position_embeddings=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _read_yarn(rope: Fields, theta: float, original: int, max_position_embeddings: int) -> RopeConfig:
    if theta <= 1.0:
        raise rope.error("rope_theta", f"must be above 1 for yarn, got {theta:g}")
    factor = rope.number("factor", 1.0, MAX_FACTOR, max_position_embeddings / original)
    beta_fast = rope.number("beta_fast", 1e-3, MAX_FACTOR, 32.0)
    beta_slow = rope.number("beta_slow", 1e-3, MAX_FACTOR, 1.0)
    if beta_fast < beta_slow:
        raise rope.error("beta_fast", f"must be at least beta_slow ({beta_slow:g}), got {beta_fast:g}")
    return RopeConfig(
        rope_type="yarn",
        theta=theta,
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=_yarn_attention_factor(rope, factor),
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        # null means false here.
        truncate=not rope.is_null("truncate") and rope.boolean("truncate", True),
    )


def _yarn_attention_factor(rope: Fields, factor: float) -> float:
    """Return the factor of cos and sin: as given, from mscale, or the paper's 0.1 ln(factor) + 1."""
    if rope.has("attention_factor"):
        return rope.number("attention_factor", 0.0, 1e3)
    mscale = rope.number("mscale", 0.0, 1e3, 0.0)
    mscale_all_dim = rope.number("mscale_all_dim", 0.0, 1e3, 0.0)
    if mscale and mscale_all_dim:
        return _yarn_magnitude(factor, mscale) / _yarn_magnitude(factor, mscale_all_dim)
    return _yarn_magnitude(factor, 1.0)


def _yarn_magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
