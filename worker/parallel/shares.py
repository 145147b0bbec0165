"""Which shard of a model each rank holds under tensor parallelism, and which models can be sharded.

Heads and MLP units are divided evenly. With fewer KV heads than ranks, each rank holds the one that
its query heads read, so some ranks hold the same one. The vocabulary is divided as evenly as possible.
"""

from __future__ import annotations

from typing import NamedTuple

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.errors import ConfigError
from splitserve.worker.ops.quantization import GROUP_COLUMNS


def share(total: int, rank: int, num_ranks: int) -> range:
    """Return which of `total` things in a row are a rank's: a run, at most one longer than another's."""
    return range(total * rank // num_ranks, total * (rank + 1) // num_ranks)


def scaled(span: range, size: int, offset: int = 0) -> range:
    """Return the elements that a range of things stands for, each of `size` elements, behind `offset`."""
    return range(offset + span.start * size, offset + span.stop * size)


class HeadShare(NamedTuple):
    """A rank's heads of every attention layer.

    Attributes:
        queries: its query heads.
        keys: the KV heads that these read.
    """

    queries: range
    keys: range


def head_share(config: ModelConfig, rank: int, num_ranks: int) -> HeadShare:
    """Return a rank's heads; the model must have passed check_shares()."""
    queries = share(config.num_heads, rank, num_ranks)
    group = config.num_heads // config.num_kv_heads
    return HeadShare(queries, range(queries.start // group, (queries.stop - 1) // group + 1))


def check_stages(config: ModelConfig, num_stages: int) -> None:
    """Refuse an encoder, and a model that has fewer layers than stages.

    Raises:
        ConfigError: names the flag and what is wrong.
    """
    if config.encoder is not None:
        raise ConfigError(f"--pipeline-parallel-size must be 1 for {config.architecture}, got {num_stages}")
    if num_stages > config.num_layers:
        raise ConfigError(f"--pipeline-parallel-size {num_stages} exceeds the {config.num_layers} layers")


def check_shares(
    config: ModelConfig, num_ranks: int, quantization: str, *, splits_experts: bool = False
) -> None:
    """Refuse a model that cannot be sharded over this many ranks.

    Raises:
        ConfigError: names the flag, the size that does not divide, and both numbers.
    """
    if num_ranks == 1:
        return
    if config.traits.attention.qk_norm == "row":
        raise ConfigError(
            f"--tensor-parallel-size must be 1 for {config.architecture}, got {num_ranks}: "
            "its norms are over all query or key heads, and no rank would have all"
        )
    inner = _inner_sizes(config)
    if splits_experts:
        _check_experts(config, num_ranks)
        # All units of an expert are one rank's.
        inner.pop("experts")
    _check(config.num_heads % num_ranks == 0, num_ranks, f"the {config.num_heads} attention heads")
    kv_heads = config.num_kv_heads
    divides = kv_heads % num_ranks == 0 or num_ranks % kv_heads == 0
    _check(divides, num_ranks, f"the {kv_heads} KV heads")
    for name, size in inner.items():
        _check(size % num_ranks == 0, num_ranks, f"the {size} units of the {name}")
    _check(config.vocab_size >= num_ranks, num_ranks, f"the {config.vocab_size} tokens of the vocabulary")
    if config.experts is not None and config.experts.is_mxfp4 and not splits_experts:
        _check_groups(num_ranks, {"experts": config.experts.inner_size // num_ranks}, "MXFP4")
    if quantization == "int4":
        value_dim = config.head_dim if config.latent is None else config.latent.value_dim
        attended = config.num_heads // num_ranks * value_dim
        shares = {name: size // num_ranks for name, size in inner.items()}
        _check_groups(num_ranks, {"attention heads": attended, **shares}, "int4")


def _check_experts(config: ModelConfig, num_ranks: int) -> None:
    if config.experts is None:
        raise ConfigError(f"--enable-expert-parallel: {config.architecture} has no experts")
    if config.experts.num_experts < num_ranks:
        raise ConfigError(
            f"--tensor-parallel-size {num_ranks} exceeds the {config.experts.num_experts} experts, "
            "of which each rank holds some with --enable-expert-parallel"
        )


def _inner_sizes(config: ModelConfig) -> dict[str, int]:
    """Return the inner widths of the MLPs that the layers have."""
    experts = config.experts
    if experts is None:
        return {"MLP": config.intermediate_size}
    sizes = {"experts": experts.inner_size}
    if experts.shared_size:
        sizes["shared expert"] = experts.shared_size
    if not all(experts.is_sparse):
        sizes["MLP"] = config.intermediate_size
    return sizes


def _check_groups(num_ranks: int, shares: dict[str, int], form: str) -> None:
    for name, size in shares.items():
        if size % GROUP_COLUMNS:
            raise ConfigError(
                f"--tensor-parallel-size {num_ranks} leaves each rank {size} columns of the {name}, "
                f"but {form} quantizes groups of {GROUP_COLUMNS}"
            )


def _check(is_possible: bool, num_ranks: int, what: str) -> None:
    if not is_possible:
        raise ConfigError(f"--tensor-parallel-size {num_ranks} does not divide {what}")
