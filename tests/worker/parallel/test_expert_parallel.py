"""Ranks that hold whole experts each give the tokens of one rank, for every family that has some."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from tests.checkpoints import CheckpointCache, CheckpointSpec
from tests.mxfp4 import write_mxfp4
from tests.worker.parallel.both import GQA, MakeBoth, assert_close, assert_tokens_of_one, jobs_of, make_both
from tests.worker.parallel.ranks import RankPool
from tests.worker.runner.driver import Job

__all__ = ["make_both"]

# Numbers of units that two ranks could not share, and of experts that are not divisible by them.
CASES: dict[str, CheckpointSpec] = {
    "mixtral": CheckpointSpec("mixtral", {**GQA, "intermediate_size": 41}),
    "qwen2moe": CheckpointSpec("qwen2moe", {**GQA, "moe_intermediate_size": 13, "mlp_only_layers": [0]}),
    "gptoss": CheckpointSpec("gptoss", {**GQA, "num_local_experts": 5}),
    "granitemoeshared": CheckpointSpec("granitemoeshared", {**GQA, "residual_multiplier": 0.5}),
    "deepseekv3": CheckpointSpec("deepseekv3", {**GQA, "num_key_value_heads": 8}),
}


@pytest.mark.parametrize(("num_ranks", "num_stages"), [(2, 1), (4, 1), (2, 2)])
@pytest.mark.parametrize("case", CASES)
def test_ranks_of_experts_give_the_tokens_of_one(
    case: str, num_ranks: int, num_stages: int, make_both: MakeBoth, checkpoints: CheckpointCache
) -> None:
    both = make_both(checkpoints.get(CASES[case]), num_ranks, num_stages=num_stages, splits_experts=True)
    assert_tokens_of_one(both, seed=num_ranks)


def test_what_ranks_compute_does_not_depend_on_the_batch(
    make_both: MakeBoth, checkpoints: CheckpointCache
) -> None:
    spec = CheckpointSpec("mixtral", GQA, torch.bfloat16)
    both = make_both(checkpoints.get(spec), 2, splits_experts=True)
    jobs = jobs_of(seed=9)
    alone = [both.run_parallel([job])[0] for job in jobs]
    assert both.run_parallel(jobs, random.Random(9)) == alone, "tokens and the bits of their logprobs"


@pytest.mark.parametrize("quantization", ["int8", "int4", "w8a8"])
def test_rounded_weights_give_nearly_the_logprobs_of_one_rank(
    quantization: str, make_both: MakeBoth, checkpoints: CheckpointCache
) -> None:
    # 32 columns of an expert could not be parted in groups of 32.
    spec = CheckpointSpec("mixtral", {**GQA, "intermediate_size": 32}, torch.bfloat16)
    both = make_both(checkpoints.get(spec), 2, quantization, splits_experts=True)
    jobs = [Job(list(range(7, 47)), SequenceSampling(max_tokens=2, prompt_logprobs=1), 1)]
    tolerance = 1.5 if quantization == "w8a8" else 0.3
    assert_close(both.run_parallel(jobs)[0], both.run_single(jobs)[0], tolerance)


def test_experts_in_mxfp4_give_nearly_the_logprobs_of_one_rank(
    make_both: MakeBoth, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    spec = CheckpointSpec("gptoss", {**GQA, "intermediate_size": 32}, torch.bfloat16)
    write_mxfp4(checkpoints.get(spec), tmp_path)
    both = make_both(tmp_path / "mxfp4", 2, splits_experts=True)
    jobs = [Job(list(range(7, 47)), SequenceSampling(max_tokens=2, prompt_logprobs=1), 1)]
    assert_close(both.run_parallel(jobs)[0], both.run_single(jobs)[0], tolerance=0.3)


def test_the_size_told_is_that_of_the_whole_model(make_both: MakeBoth, checkpoints: CheckpointCache) -> None:
    both = make_both(checkpoints.get(CASES["mixtral"]), 2, splits_experts=True)
    whole = both.single.load().model
    for ready in both.parallel.loaded:
        assert ready.model.num_params == whole.num_params
        assert " tp2 pp1 ep" in ready.model.numerics


@pytest.mark.parametrize(
    ("spec", "num_ranks", "text"),
    [
        (CheckpointSpec("llama", GQA), 2, "--enable-expert-parallel: LlamaForCausalLM has no experts"),
        (
            CheckpointSpec("mixtral", {**GQA, "num_local_experts": 3}),
            4,
            "--tensor-parallel-size 4 exceeds the 3 experts",
        ),
    ],
)
def test_what_has_too_few_experts_is_refused(
    spec: CheckpointSpec, num_ranks: int, text: str, ranks: RankPool, checkpoints: CheckpointCache
) -> None:
    path = str(checkpoints.get(spec))
    config = WorkerConfig(model=path, tensor_parallel_size=num_ranks, enable_expert_parallel=True)
    with pytest.raises(ConfigError, match=text):
        ranks.load(config)
