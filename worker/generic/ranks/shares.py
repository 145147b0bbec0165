"""Which part of each linear layer a rank holds, by the plan that the library has for an architecture."""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

import msgspec
from torch import nn
from transformers import PreTrainedModel

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.errors import ConfigError
from splitserve.worker.generic.attention import LayerAttention
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.ops.quantization import GROUP_COLUMNS
from splitserve.worker.parallel.shares import HeadShare, head_share, scaled, share

_ALL_OUTPUTS = ("colwise_gather_output", "colwise_rep")
_ALL_INPUTS = ("rowwise_split_input", "rowwise_rep")
_SPLITS_OUTPUTS = ("colwise", *_ALL_OUTPUTS)
_SPLITS_INPUTS = ("rowwise", *_ALL_INPUTS)
# Every rank holds all of it; the longer one speaks of training.
_WHOLE = ("replicate", "replicated_with_grad_allreduce")
# Projections to keys and values by the last part of their names, as plans do not tell them from others.
_KEYS_AND_VALUES = ("k_proj", "v_proj")


class LinearShare(NamedTuple):
    """A rank's part of a linear layer.

    Attributes:
        outputs: those that it computes; None for all.
        inputs: those of which it computes the part of a sum; None for all.
        is_gathered: every rank gets all outputs.
        is_cut: every rank is handed all inputs, rather than its own.
    """

    outputs: range | None = None
    inputs: range | None = None
    is_gathered: bool = False
    is_cut: bool = False


class LinearShares(Protocol):
    """Says how linear layers are parted."""

    def __call__(self, name: str, shape: tuple[int, int]) -> LinearShare:
        """Return a rank's part of a layer [N, K] that has this name in the model."""

    def check_units(self, name: str, num_units: int) -> None:
        """Refuse an MLP whose units cannot be divided; it is sharded whatever the plan says."""

    def settle_attention(self, layers: list[LayerAttention]) -> None:
        """Refuse a plan under which a layer's attention is not that of this rank's heads, or of all.

        Args:
            layers: what each asks for on this rank.
        """


class OneRank:
    """Holds all of every layer."""

    def __call__(self, name: str, shape: tuple[int, int]) -> LinearShare:
        """Return all of it."""
        return LinearShare()

    def check_units(self, name: str, num_units: int) -> None:
        """Any will do."""

    def settle_attention(self, layers: list[LayerAttention]) -> None:
        """It has all heads."""


class PlannedShares:
    """One of several ranks' shares of a model.

    Args:
        ctx: of the rank.
        config: of the checkpoint.
        model: as the library built it; its own attention is told how many queries share a key here.
        sizes: of its layers' attention.

    Raises:
        ConfigError: the library has no plan for the architecture, or one with a style that is not known here;
            or heads do not divide.
    """

    def __init__(
        self, ctx: LayerContext, config: ModelConfig, model: PreTrainedModel, sizes: LayerAttention
    ) -> None:
        assert ctx.group is not None, "there are several ranks"
        self._rank, self._num_ranks = ctx.group.rank, ctx.group.size
        self._has_groups = ctx.plan.linear_form == "int4"
        self._architecture = config.architecture
        self._sizes = sizes
        self._plan = self._plan_of(model)
        num_heads, num_kv_heads = sizes.num_heads, sizes.num_kv_heads
        self._check(num_heads % self._num_ranks == 0, f"the {num_heads} attention heads")
        divides = num_kv_heads % self._num_ranks == 0 or self._num_ranks % num_kv_heads == 0
        self._check(divides, f"the {num_kv_heads} KV heads")
        exact = msgspec.structs.replace(
            config, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=sizes.head_dim
        )
        self._heads: HeadShare = head_share(exact, self._rank, self._num_ranks)
        # The library's own attention, which ours is compared with.
        self._attentions = [module for module in model.modules() if hasattr(module, "num_key_value_groups")]

    def __call__(self, name: str, shape: tuple[int, int]) -> LinearShare:
        """Return this rank's part of a layer [N, K].

        Raises:
            ConfigError: N or K does not divide.
        """
        style = self._plan.get(_pattern(name), "replicate")
        num_outputs, num_inputs = shape
        if style in _SPLITS_OUTPUTS:
            outputs = self._outputs(name, num_outputs, is_gathered=style in _ALL_OUTPUTS)
            return LinearShare(outputs=outputs, is_gathered=style in _ALL_OUTPUTS)
        if style in _SPLITS_INPUTS:
            self.check_units(name, num_inputs)
            inputs = share(num_inputs, self._rank, self._num_ranks)
            return LinearShare(inputs=inputs, is_cut=style in _ALL_INPUTS)
        return LinearShare()

    def check_units(self, name: str, num_units: int) -> None:
        """Refuse what is summed over units that cannot be divided.

        Raises:
            ConfigError: they do not divide, or not into whole groups of int4.
        """
        self._check(num_units % self._num_ranks == 0, f"the {num_units} inputs of {_pattern(name)}")
        columns = num_units // self._num_ranks
        if self._has_groups and columns % GROUP_COLUMNS:
            raise ConfigError(
                f"--tensor-parallel-size {self._num_ranks} leaves each rank {columns} columns of "
                f"{_pattern(name)}, but int4 quantizes groups of {GROUP_COLUMNS}"
            )

    def settle_attention(self, layers: list[LayerAttention]) -> None:
        """Refuse a plan under which a layer's attention is not that of this rank's heads, or of all.

        Raises:
            ConfigError: names both numbers.
        """
        for shard in layers:
            self._check_attention(shard)
        for module in self._attentions:
            # It repeats keys so often. With projections that are gathered, a rank has all heads.
            module.num_key_value_groups = layers[0].num_heads // layers[0].num_kv_heads

    def _check_attention(self, shard: LayerAttention) -> None:
        found, whole = (
            (shard.num_heads, shard.num_kv_heads),
            (self._sizes.num_heads, self._sizes.num_kv_heads),
        )
        own = len(self._heads.queries), len(self._heads.keys)
        if found not in (own, whole) or shard.head_dim != self._sizes.head_dim:
            queries, keys = (f"{mine} of {all_}" for mine, all_ in zip(found, whole, strict=True))
            raise self._refusal(f"its plan gives a rank {queries} query heads and {keys} KV heads")

    def _plan_of(self, model: PreTrainedModel) -> dict[str, str]:
        """Return the styles of linear layers by their names' patterns; others have to be whole."""
        linears = {_pattern(name) for name, module in model.named_modules() if type(module) is nn.Linear}
        known = {_pattern(name) for name, _ in (*model.named_modules(), *model.named_parameters())}
        vocabulary = (model.get_input_embeddings(), model.get_output_embeddings())
        ours = {_pattern(name) for name, module in model.named_modules() if module in vocabulary}
        # The vocabulary is divided as that of native models.
        plan = {name: style for name, style in model.tp_plan.items() if name in known - ours}
        for name, style in plan.items():
            is_known = style in (*_SPLITS_OUTPUTS, *_SPLITS_INPUTS) if name in linears else False
            if not is_known and style not in _WHOLE:
                raise self._refusal(f"its plan wants {name} {style!r}, which is not built")
        if not any(style in _SPLITS_OUTPUTS for style in plan.values()):
            raise self._refusal("transformers has no plan of how to shard its layers")
        return plan

    def _outputs(self, name: str, num_outputs: int, *, is_gathered: bool) -> range:
        sizes = self._sizes
        is_kv = name.rpartition(".")[2] in _KEYS_AND_VALUES
        if is_kv and not is_gathered and num_outputs == sizes.num_kv_heads * sizes.head_dim:
            return scaled(self._heads.keys, sizes.head_dim)
        self._check(num_outputs % self._num_ranks == 0, f"the {num_outputs} outputs of {_pattern(name)}")
        return share(num_outputs, self._rank, self._num_ranks)

    def _check(self, is_possible: bool, what: str) -> None:
        if not is_possible:
            raise ConfigError(f"--tensor-parallel-size {self._num_ranks} does not divide {what}")

    def _refusal(self, reason: str) -> ConfigError:
        return ConfigError(
            f"--tensor-parallel-size must be 1 for {self._architecture} in the layers of the transformers "
            f"library, got {self._num_ranks}: {reason}"
        )


def _pattern(name: str) -> str:
    """Return a module's name with stars for the numbers of layers, as plans have it."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)
