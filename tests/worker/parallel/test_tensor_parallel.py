"""Several ranks give the tokens of one, for every architecture, whatever the company and the steps."""

from __future__ import annotations

import dataclasses
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
from tests.worker.parallel.both import GQA, MakeBoth, assert_close, assert_tokens_of_one, jobs_of, make_both
from tests.worker.parallel.ranks import RankPool
from tests.worker.runner.checkpoints import write_tiny_llama
from tests.worker.runner.driver import Job
from tests.worker.weights.quantized import CASES as CASES_OF_FORMATS
from tests.worker.weights.quantized import write_quantized

_WIDE = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 256}

__all__ = ["make_both"]

CASES: dict[str, CheckpointSpec] = {
    "llama-tied-odd-vocab": CheckpointSpec("llama", {**GQA, "tie_word_embeddings": True, "vocab_size": 333}),
    "llama-biases": CheckpointSpec("llama", {**GQA, "attention_bias": True, "mlp_bias": True}),
    "llama-mqa": CheckpointSpec("llama", {**GQA, "num_key_value_heads": 1}),
    "mistral-window": CheckpointSpec("mistral", {**GQA, "sliding_window": 13}),
    "qwen2": CheckpointSpec("qwen2", {**GQA, "num_key_value_heads": 4}),
    "qwen3": CheckpointSpec("qwen3", GQA),
    "granite": CheckpointSpec(
        "granite", {**GQA, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0}
    ),
    "phi3": CheckpointSpec("phi3", GQA),
    "gemma2": CheckpointSpec("gemma2", {**GQA, "sliding_window": 13, "attn_logit_softcapping": 4.0}),
    "gemma3": CheckpointSpec(
        "gemma3",
        {**GQA, "sliding_window": 13, "sliding_window_pattern": 2, "final_logit_softcapping": 9.0},
    ),
    "glm4": CheckpointSpec("glm4", GQA),
    "cohere2": CheckpointSpec("cohere2", {**GQA, "sliding_window": 13, "sliding_window_pattern": 2}),
    "starcoder2": CheckpointSpec("starcoder2", GQA),
    "mixtral": CheckpointSpec("mixtral", GQA),
    "qwen2moe": CheckpointSpec("qwen2moe", {**GQA, "mlp_only_layers": [0]}),
    "qwen3moe": CheckpointSpec("qwen3moe", GQA),
    "gptoss": CheckpointSpec("gptoss", GQA),
    "granitemoeshared": CheckpointSpec("granitemoeshared", {**GQA, "residual_multiplier": 0.5}),
    "deepseekv3": CheckpointSpec("deepseekv3", {**GQA, "num_key_value_heads": 8}),
    "gpt2-tied": CheckpointSpec("gpt2", {"n_embd": 64, "n_head": 8, "n_inner": 72}),
    "gpt2-untied": CheckpointSpec("gpt2", {"n_embd": 64, "n_head": 4, "tie_word_embeddings": False}),
}
WIDE_CASES = {
    "llama-wide": CheckpointSpec("llama", {**_WIDE, "tie_word_embeddings": True}, torch.bfloat16),
    "qwen2moe-wide": CheckpointSpec(
        "qwen2moe",
        {**_WIDE, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 64},
        torch.bfloat16,
    ),
    "gpt2-wide": CheckpointSpec("gpt2", {"n_embd": 128, "n_head": 4}, torch.bfloat16),
}


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_several_ranks_give_the_tokens_of_one(
    case: str, num_ranks: int, make_both: MakeBoth, checkpoints: CheckpointCache
) -> None:
    both = make_both(checkpoints.get(CASES[case]), num_ranks)
    assert_tokens_of_one(both, seed=num_ranks)


def test_what_ranks_compute_together_does_not_depend_on_the_batch(
    make_both: MakeBoth, checkpoints: CheckpointCache
) -> None:
    both = make_both(checkpoints.get(dataclasses.replace(CASES["llama-biases"], dtype=torch.bfloat16)), 2)
    jobs = jobs_of(seed=9)
    alone = [both.run_parallel([job])[0] for job in jobs]
    assert both.run_parallel(jobs, random.Random(9)) == alone, "tokens and the bits of their logprobs"


@pytest.mark.parametrize("quantization", ["none", "int8", "int4", "w8a8"])
@pytest.mark.parametrize("case", WIDE_CASES)
def test_rounded_weights_give_nearly_the_logprobs_of_one_rank(
    case: str, quantization: str, make_both: MakeBoth, checkpoints: CheckpointCache
) -> None:
    both = make_both(checkpoints.get(WIDE_CASES[case]), 2, quantization)
    scoring = SequenceSampling(max_tokens=2, prompt_logprobs=1)
    jobs = [Job(list(range(7, 47)), scoring, 1)]
    expected, found = both.run_single(jobs)[0], both.run_parallel(jobs)[0]
    # Sums are rounded to bfloat16 at the same places, but to neighbours here and there; int8 activations of a
    # shard have scales of its own.
    assert_close(found, expected, tolerance=1.5 if quantization == "w8a8" else 0.3)


def test_experts_in_mxfp4_give_nearly_the_logprobs_of_one_rank(
    make_both: MakeBoth, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    spec = CheckpointSpec("gptoss", {**GQA, "intermediate_size": 128}, torch.bfloat16)
    write_mxfp4(checkpoints.get(spec), tmp_path)
    both = make_both(tmp_path / "mxfp4", 2)
    jobs = [Job(list(range(7, 47)), SequenceSampling(max_tokens=2, prompt_logprobs=1), 1)]
    assert_close(both.run_parallel(jobs)[0], both.run_single(jobs)[0], tolerance=0.3)


def test_integers_out_of_order_give_nearly_the_logprobs_of_one_rank(
    make_both: MakeBoth, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    """Ranks hold parts of all groups of inputs."""
    source = checkpoints.get(CheckpointSpec("llama", _WIDE, torch.bfloat16))
    write_quantized(source, CASES_OF_FORMATS["gptq-act-order"], tmp_path / "quantized", tmp_path / "plain")
    both = make_both(tmp_path / "quantized", 2)
    jobs = [Job(list(range(7, 47)), SequenceSampling(max_tokens=2, prompt_logprobs=1), 1)]
    assert_close(both.run_parallel(jobs)[0], both.run_single(jobs)[0], tolerance=0.3)


def test_a_row_that_fails_on_the_rank_that_samples_fails_on_all(make_both: MakeBoth, tmp_path: Path) -> None:
    poisoned = 77
    both = make_both(write_tiny_llama(tmp_path / "poisoned", poisoned_token=poisoned), 2)
    greedy = SequenceSampling(max_tokens=32)
    jobs = [
        Job([5, 6, 7], greedy, 12),
        Job([5, poisoned, 7], greedy, 12),
        Job([8, 9, poisoned, 3], SequenceSampling(max_tokens=32, prompt_logprobs=2), 12),
        Job([11] * 30, greedy, 12),
    ]
    found = both.run_parallel(jobs)
    assert [job.error.code if job.error else None for job in found] == [
        None,
        "numerical_error",
        "numerical_error",
        None,
    ]
    assert [job.tokens for job in found] == [job.tokens for job in both.run_single(jobs)]


def test_each_rank_holds_its_heads_of_the_kv_cache_and_tells_the_size_of_the_whole_model(
    make_both: MakeBoth, checkpoints: CheckpointCache
) -> None:
    both = make_both(checkpoints.get(CASES["qwen2"]), 4)
    whole = both.single.load()
    for ready in both.parallel.loaded:
        assert ready.block_bytes == whole.block_bytes // 4
        assert ready.model == msgspec.structs.replace(
            whole.model, numerics=whole.model.numerics.replace(" tp1 ", " tp4 ")
        )


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"moe_intermediate_size": 13}, "2 does not divide the 13 units of the experts"),
        ({"shared_expert_intermediate_size": 41}, "2 does not divide the 41 units of the shared expert"),
        ({"mlp_only_layers": [0], "intermediate_size": 81}, "2 does not divide the 81 units of the MLP"),
    ],
)
def test_experts_that_cannot_be_parted_are_refused(
    sizes: dict[str, object], text: str, ranks: RankPool, checkpoints: CheckpointCache
) -> None:
    path = checkpoints.get(CheckpointSpec("qwen2moe", {**GQA, **sizes}))
    with pytest.raises(ConfigError, match=text):
        ranks.load(WorkerConfig(model=str(path), tensor_parallel_size=2))


@pytest.mark.parametrize(
    ("settings", "quantization", "text"),
    [
        ({}, "none", "--tensor-parallel-size 4 does not divide the 6 attention heads"),
        (
            {"num_attention_heads": 12, "num_key_value_heads": 6, "hidden_size": 96},
            "none",
            "4 does not divide the 6 KV heads",
        ),
        ({**GQA, "intermediate_size": 82}, "none", "4 does not divide the 82 units"),
        (
            {**_WIDE, "intermediate_size": 96},
            "int4",
            "24 columns of the MLP, but int4 quantizes groups of 32",
        ),
    ],
)
def test_what_cannot_be_parted_is_refused_with_its_numbers(
    settings: dict[str, object], quantization: str, text: str, ranks: RankPool, checkpoints: CheckpointCache
) -> None:
    path = checkpoints.get(CheckpointSpec("llama", settings, torch.bfloat16))
    config = WorkerConfig(model=str(path), quantization=quantization, tensor_parallel_size=4)
    with pytest.raises(ConfigError, match=text):
        ranks.load(config)
