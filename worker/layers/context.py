"""The context passed to every layer of a model when it is built."""

from __future__ import annotations

from typing import NamedTuple

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.worker.attention.base import AttentionBackend
from splitserve.worker.device.workspace import Workspace
from splitserve.worker.layers.adapters.adapters import Adapters
from splitserve.worker.layers.weight_plan import WeightPlan
from splitserve.worker.ops.interface import Kernels
from splitserve.worker.ops.matrix import Matrix
from splitserve.worker.parallel.group import RankGroup
from splitserve.worker.parallel.shares import HeadShare, head_share, share
from splitserve.worker.parallel.stage import Stage


class LayerContext(NamedTuple):
    """Handed down to the layers' constructors.

    Attributes:
        plan: where layers declare their weights.
        workspace: where they keep their activations.
        backend: computes attention.
        ops: the device's kernels for everything else.
        group: the ranks that shard each layer; None if this one holds all of it.
        stage: pipeline stage of this rank; None if it holds all layers.
        splits_experts: the ranks of the group hold experts each, instead of units of all.
        adapters: where linear layers are changed; None if there are no adapters.
    """

    plan: WeightPlan
    workspace: Workspace
    backend: AttentionBackend
    ops: Kernels[Matrix]
    group: RankGroup | None = None
    stage: Stage | None = None
    splits_experts: bool = False
    adapters: Adapters | None = None

    def share(self, total: int) -> range:
        """Return which of `total` rows or units this rank holds."""
        return share(total, self._rank, self._num_ranks)

    def experts(self, total: int) -> range:
        """Return which of `total` experts this rank holds units of."""
        return self.share(total) if self.splits_experts else range(total)

    def expert_units(self, total: int) -> range:
        """Return which of an expert's `total` units this rank holds."""
        return range(total) if self.splits_experts else self.share(total)

    @property
    def is_first(self) -> bool:
        """Whether this is the first rank of its group."""
        return self._rank == 0

    def heads(self, config: ModelConfig) -> HeadShare:
        """Return the heads this rank holds of every attention layer."""
        return head_share(config, self._rank, self._num_ranks)

    @property
    def _rank(self) -> int:
        return 0 if self.group is None else self.group.rank

    @property
    def _num_ranks(self) -> int:
        return 1 if self.group is None else self.group.size
