"""Over how many workers a model is split, and how."""

# No "from __future__ import annotations": --help would then have to evaluate each declaration, 10 ms in all.
from typing import Annotated

from splitserve.engine_core.settings.adapter_settings import AdapterSettings
from splitserve.engine_core.settings.checks import check_range
from splitserve.engine_core.settings.setting import Setting

MAX_RANKS = 64


class ParallelSettings(AdapterSettings, frozen=True, kw_only=True):
    """Settings of an engine and its workers that concern their number."""

    num_threads: Annotated[
        int,
        Setting(
            "compute threads of each worker; 0 = divide all cores among the workers",
            "parallelism",
            low=0,
            high=1024,
            llm=True,
        ),
    ] = 0
    tensor_parallel_size: Annotated[
        int,
        Setting(
            "number of workers to shard each layer across",
            "parallelism",
            alias="-tp",
            low=1,
            high=MAX_RANKS,
            docs=", see [parallelism](parallelism.md)",
            llm=True,
        ),
    ] = 1
    pipeline_parallel_size: Annotated[
        int,
        Setting(
            "number of pipeline stages to split the layers into",
            "parallelism",
            alias="-pp",
            low=1,
            high=MAX_RANKS,
            docs="; at most 64 workers in all, see [parallelism](parallelism.md#pipeline-parallel)",
            llm=True,
        ),
    ] = 1
    enable_expert_parallel: Annotated[
        bool,
        Setting(
            "ranks of tensor parallelism hold some whole experts each, instead of a shard of every expert",
            "parallelism",
            negatable=True,
            docs=", see [parallelism](parallelism.md#expert-parallel)",
            llm=True,
        ),
    ] = False

    @property
    def num_ranks(self) -> int:
        """Number of workers."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def splits_experts(self) -> bool:
        """Whether ranks hold experts each, instead of units of all."""
        return self.enable_expert_parallel and self.tensor_parallel_size > 1

    @property
    def output_rank(self) -> int:
        """The rank that samples: the first of the last stage."""
        return self.num_ranks - self.tensor_parallel_size

    def validate(self) -> None:
        """Check every value against its declaration, and the number of workers.

        Raises:
            ConfigError: names the flag and what it takes.
        """
        super().validate()
        sizes = "--tensor-parallel-size times --pipeline-parallel-size"
        check_range(sizes, self.num_ranks, 1, MAX_RANKS)
