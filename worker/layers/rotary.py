"""The rotary embedding table, for every supported kind of RoPE scaling."""

from __future__ import annotations

import math

import torch

from splitserve.engine_core.checkpoint.config.rope_config import RopeConfig
from splitserve.worker.layers.context import LayerContext


class RotaryEmbedding:
    """The rotation angles of queries and keys; one table serves all layers.

    Args:
        config: of the frequencies.
        head_dim: D, even.
        max_len: positions 0..max_len-1 are served.
    """

    def __init__(self, ctx: LayerContext, config: RopeConfig, head_dim: int, max_len: int) -> None:
        rotary_dim = int(head_dim * config.share)
        self._cos_sin = ctx.plan.declare_table(lambda: cos_sin_table(config, rotary_dim, max_len))

    @property
    def cos_sin(self) -> torch.Tensor:
        """The table [max_len, rotary_dim], once weights are allocated; see cos_sin_table."""
        return self._cos_sin.tensor


def cos_sin_table(config: RopeConfig, rotary_dim: int, max_len: int) -> torch.Tensor:
    """Return fp32 [max_len, rotary_dim]: cos in the first half of each row, sin in the second.

    Angles are position times frequency in fp32, as in training.
    """
    frequencies = inverse_frequencies(config, rotary_dim, max_len)
    angles = torch.outer(torch.arange(max_len, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).mul_(config.attention_factor)


def inverse_frequencies(config: RopeConfig, rotary_dim: int, max_len: int) -> torch.Tensor:
    """Return the angle per position of each pair of dimensions, fp32 [rotary_dim / 2]."""
    if config.rope_type == "longrope":
        is_long = max_len > config.original_max_position_embeddings
        factors = torch.tensor(config.long_factors if is_long else config.short_factors)
        return 1.0 / (factors * _periods(config, rotary_dim))
    plain = 1.0 / _periods(config, rotary_dim)
    if config.rope_type == "linear":
        return plain / config.factor
    if config.rope_type == "llama3":
        return _llama3(config, plain)
    if config.rope_type == "yarn":
        return _yarn(config, rotary_dim)
    # "dynamic" is the plain rotation up to the trained context, and no sequence is served beyond it.
    return plain


def _periods(config: RopeConfig, rotary_dim: int) -> torch.Tensor:
    return config.theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)


def _llama3(config: RopeConfig, plain: torch.Tensor) -> torch.Tensor:
    """Keep high frequencies, divide low ones by the factor, and blend those in between."""
    wavelengths = 2 * math.pi / plain
    turns = config.original_max_position_embeddings / wavelengths
    blend = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    blended = (1 - blend) * plain / config.factor + blend * plain
    is_low = wavelengths > config.original_max_position_embeddings / config.low_freq_factor
    is_high = wavelengths < config.original_max_position_embeddings / config.high_freq_factor
    return torch.where(is_high, plain, torch.where(is_low, plain / config.factor, blended))


def _yarn(config: RopeConfig, rotary_dim: int) -> torch.Tensor:
    """Blend plain and scaled-down frequencies along a linear ramp over the dimensions."""
    periods = _periods(config, rotary_dim)
    low = _yarn_border(config, rotary_dim, config.beta_fast)
    high = _yarn_border(config, rotary_dim, config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(rotary_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    # Written as 1 - (1 - ramp) to round as the reference implementation does.
    keep = 1 - ramp
    return (1.0 / (config.factor * periods)) * (1 - keep) + (1.0 / periods) * keep


def _yarn_border(config: RopeConfig, rotary_dim: int, rotations: float) -> float:
    """Return the dimension that makes this many rotations over the trained context."""
    turns = config.original_max_position_embeddings / (rotations * 2 * math.pi)
    return rotary_dim * math.log(turns) / (2 * math.log(config.theta))
