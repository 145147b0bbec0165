"""Several stages give the tokens of one, for every architecture; also where each stage has several ranks."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
import torch

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from tests.checkpoints import CheckpointCache, CheckpointSpec
from tests.mxfp4 import write_mxfp4
from tests.worker.parallel.both import GQA, MakeBoth, assert_close, jobs_of, make_both
from tests.worker.parallel.ranks import RankPool
from tests.worker.runner.checkpoints import write_tiny_llama
from tests.worker.runner.driver import Job

__all__ = ["make_both"]

# Uneven stages too.
_THREE = {**GQA, "num_hidden_layers": 3}

CASES: dict[str, tuple[CheckpointSpec, int, int]] = {
    "llama-tied": (CheckpointSpec("llama", {**_THREE, "tie_word_embeddings": True}), 1, 2),
    "llama-untied-3": (CheckpointSpec("llama", _THREE), 1, 3),
    "mistral-window": (CheckpointSpec("mistral", {**_THREE, "sliding_window": 13}), 1, 2),
    # Window groups: of a layer that sees all and two with a window, which each stage places by itself.
    "gemma3": (
        CheckpointSpec("gemma3", {**_THREE, "sliding_window": 13, "sliding_window_pattern": 3}),
        1,
        2,
    ),
    "qwen3": (CheckpointSpec("qwen3", _THREE), 1, 2),
    "olmo2": (CheckpointSpec("olmo2", _THREE), 1, 2),
    "qwen3moe": (CheckpointSpec("qwen3moe", {**_THREE, "mlp_only_layers": [1]}), 1, 2),
    "deepseekv2-2x2": (CheckpointSpec("deepseekv2", {**_THREE, "num_key_value_heads": 8}), 2, 2),
    "granitemoeshared-2x2": (CheckpointSpec("granitemoeshared", _THREE), 2, 2),
    "gpt2-tied": (CheckpointSpec("gpt2", {"n_embd": 64, "n_head": 8, "n_layer": 3}), 1, 2),
    "llama-tied-2x2": (CheckpointSpec("llama", {**_THREE, "tie_word_embeddings": True}), 2, 2),
    "gpt2-2x2": (CheckpointSpec("gpt2", {"n_embd": 64, "n_head": 8, "n_layer": 2}), 2, 2),
}


@pytest.mark.parametrize("case", CASES)
def test_several_stages_give_the_tokens_of_one(
    case: str, make_both: MakeBoth, checkpoints: CheckpointCache
) -> None:
    spec, num_ranks, num_stages = CASES[case]
    both = make_both(checkpoints.get(spec), num_ranks, num_stages=num_stages)
    jobs = jobs_of(seed=num_stages)
    expected, found = both.run_single(jobs), both.run_parallel(jobs, random.Random(num_stages))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.error is None
        assert ours.tokens == theirs.tokens
        if num_ranks == 1:
            assert ours == theirs, "no sum is parted, so that the logprobs are the same bits"
        assert_close(ours, theirs, tolerance=1e-4)


def test_int8_and_bfloat16_are_the_same_bits_over_stages(
    make_both: MakeBoth, checkpoints: CheckpointCache
) -> None:
    spec = CheckpointSpec("llama", {**_THREE, "tie_word_embeddings": True}, torch.bfloat16)
    both = make_both(checkpoints.get(spec), 1, "int8", num_stages=2)
    jobs = jobs_of(seed=5)
    assert both.run_parallel(jobs, random.Random(5)) == both.run_single(jobs)


def test_mxfp4_is_the_same_bits_over_stages(
    make_both: MakeBoth, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    spec = CheckpointSpec("gptoss", {**_THREE, "intermediate_size": 96}, torch.bfloat16)
    write_mxfp4(checkpoints.get(spec), tmp_path)
    both = make_both(tmp_path / "mxfp4", 1, num_stages=2)
    jobs = jobs_of(seed=6)
    assert both.run_parallel(jobs, random.Random(6)) == both.run_single(jobs)


@pytest.mark.parametrize(("num_ranks", "num_stages"), [(1, 2), (2, 2)])
def test_a_row_that_fails_on_the_last_stage_leaves_the_others_in_step(
    num_ranks: int, num_stages: int, make_both: MakeBoth, tmp_path: Path
) -> None:
    poisoned = 77
    model = write_tiny_llama(tmp_path / "poisoned", poisoned_token=poisoned)
    both = make_both(model, num_ranks, num_stages=num_stages)
    greedy = SequenceSampling(max_tokens=32)
    jobs = [
        Job([5, 6, 7], greedy, 12),
        Job([5, poisoned, 7], greedy, 12),
        # Its prompt is found broken in a chunk behind which others follow.
        Job([poisoned, *range(8, 68)], SequenceSampling(max_tokens=32, prompt_logprobs=2), 12),
        Job([11] * 30, greedy, 12),
    ]
    found = both.run_parallel(jobs)
    codes = [job.error.code if job.error else None for job in found]
    assert codes == [None, "numerical_error", "numerical_error", None]
    assert [job.tokens for job in found] == [job.tokens for job in both.run_single(jobs)]


def test_each_stage_holds_its_layers_and_all_tell_the_size_of_the_whole_model(
    make_both: MakeBoth, checkpoints: CheckpointCache
) -> None:
    both = make_both(checkpoints.get(CASES["llama-tied"][0]), 1, num_stages=2)
    whole = both.single.load()
    assert [ready.block_bytes * 3 // whole.block_bytes for ready in both.parallel.loaded] == [1, 2]
    expected = msgspec.structs.replace(whole.model, numerics=whole.model.numerics.replace(" pp1 ", " pp2 "))
    assert [ready.model for ready in both.parallel.loaded] == [expected, expected]


def test_more_stages_than_layers_are_refused(ranks: RankPool, checkpoints: CheckpointCache) -> None:
    path = checkpoints.get(CASES["llama-tied"][0])
    config = WorkerConfig(model=str(path), pipeline_parallel_size=4)
    with pytest.raises(ConfigError, match="--pipeline-parallel-size 4 exceeds the 3 layers"):
        ranks.load(config)
