"""A rank's place among all ranks of its engine: stage * tensor_parallel_size + place within the stage."""

from __future__ import annotations

from typing import NamedTuple

from splitserve.worker.parallel.group import RankGroup
from splitserve.worker.parallel.stage import Stage


class Mesh(NamedTuple):
    """The peers of a rank.

    Attributes:
        group: the ranks that shard each layer with it; None if it holds all of them.
        stage: its stage of the pipeline; None if it holds all layers.
        splits_experts: the ranks of the group hold experts each, instead of units of all.
    """

    group: RankGroup | None = None
    stage: Stage | None = None
    splits_experts: bool = False


ALONE = Mesh()
