"""Layers of the transformers library over several ranks: the tokens of one rank, and of the library."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
import torch

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.errors import ConfigError, SplitServeError
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.attention.cpu import CpuAttention
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.layers.parameter import PackedParameter
from splitserve.worker.models.placement import Placement
from splitserve.worker.models.registry import DeclaredModel, declare_model
from splitserve.worker.parallel.group import RankGroup
from splitserve.worker.parallel.mesh import ALONE, Mesh
from splitserve.worker.parallel.stage import Stage
from tests.worker.generic.library_models import make_model, write_checkpoint
from tests.worker.parallel.both import MakeBoth, assert_close, assert_tokens_of_one, jobs_of, make_both
from tests.worker.parallel.ranks import RankPool
from tests.worker.parallel.test_recorded_ranks import assert_ends_alike, config_of
from tests.worker.runner.driver import Job

__all__ = ["make_both"]

LIBRARY = "transformers"


@pytest.fixture(scope="module")
def library_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("library")


def path_of(model_type: str, folder: Path) -> Path:
    path = folder / model_type
    return path if path.exists() else write_checkpoint(model_type, path)


@pytest.mark.parametrize(
    ("model_type", "num_ranks"),
    [
        # Queries, keys and values of a head beside each other in one matrix.
        ("gpt_neox", 2),
        # In one matrix, too, in four blocks of queries, values and keys.
        ("codegen", 2),
        # A bias of the head.
        ("gptj", 2),
        # Norms of heads, windows, and fewer KV heads than ranks.
        ("exaone4", 4),
        # Norms over all heads: their projections are gathered, and KV heads are fewer than ranks.
        ("olmo2", 4),
        # MLPs that are none of ours, biases.
        ("phi", 2),
        # A tied head, scaled embeddings, caps.
        ("gemma2", 2),
    ],
)
def test_several_ranks_give_the_tokens_of_one_and_of_the_library(
    model_type: str, num_ranks: int, make_both: MakeBoth, library_path: Path
) -> None:
    both = make_both(path_of(model_type, library_path), num_ranks, model_impl=LIBRARY)
    assert_tokens_of_one(both, seed=num_ranks)
    job = both.run_parallel(jobs_of(num_ranks)[:1])[0]
    with torch.inference_mode():
        logits = make_model(model_type)(torch.tensor([job.prompt + job.tokens[:-1]]), use_cache=False).logits
    # By induction: each is the library's choice after those before it.
    assert job.tokens == logits[0, len(job.prompt) - 1 :].argmax(-1).tolist()


@pytest.mark.parametrize(
    ("model_type", "num_ranks"),
    [
        # Three layers of two kinds.
        ("exaone4", 1),
        # A tied head on another stage than the embedding, which is multiplied outside of its module.
        ("gemma", 1),
        ("gpt_neox", 2),
    ],
)
def test_several_stages_give_the_tokens_of_one(
    model_type: str, num_ranks: int, make_both: MakeBoth, library_path: Path
) -> None:
    both = make_both(path_of(model_type, library_path), num_ranks, num_stages=2, model_impl=LIBRARY)
    jobs = jobs_of(seed=num_ranks)
    expected, found = both.run_single(jobs), both.run_parallel(jobs, random.Random(num_ranks))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.error is None
        assert ours.tokens == theirs.tokens
        if num_ranks == 1:
            assert ours == theirs, "no sum is parted, so that the logprobs are the same bits"
        assert_close(ours, theirs, tolerance=1e-4)


def test_recorded_steps_end_as_others_do(ranks: RankPool, library_path: Path) -> None:
    config = config_of(path_of("olmo2", library_path), 2)
    assert_ends_alike(ranks, msgspec.structs.replace(config, model_impl=LIBRARY, dtype="bfloat16"))


def test_what_ranks_compute_together_does_not_depend_on_the_batch(
    make_both: MakeBoth, library_path: Path
) -> None:
    both = make_both(path_of("gpt_neox", library_path), 2, model_impl=LIBRARY)
    jobs = jobs_of(seed=9)[:4]
    alone = [both.run_parallel([job])[0] for job in jobs]
    assert both.run_parallel(jobs, random.Random(9)) == alone, "tokens and the bits of their logprobs"


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_rounded_weights_give_nearly_the_logprobs_of_one_rank(
    quantization: str, make_both: MakeBoth, tmp_path: Path
) -> None:
    path = write_checkpoint("phi", tmp_path / "model", dtype="bfloat16")
    both = make_both(path, 2, quantization, model_impl=LIBRARY)
    jobs = [Job(list(range(7, 47)), SequenceSampling(max_tokens=2, prompt_logprobs=1), 1)]
    expected, found = both.run_single(jobs)[0], both.run_parallel(jobs)[0]
    assert_close(found, expected, tolerance=0.3)


def declared(path: Path, mesh: Mesh, quantization: str = "none") -> DeclaredModel:
    """A rank's model before anything is exchanged."""
    config = read_model_config(path, LIBRARY)
    return declare_model(config, torch.bfloat16, Placement(CpuDevice(), CpuAttention(), mesh), quantization)


def rank_of(num_ranks: int, rank: int = 0) -> Mesh:
    return Mesh(cast(RankGroup, SimpleNamespace(rank=rank, size=num_ranks, can_be_captured=True)))


@pytest.mark.parametrize("model_type", ["codegen", "gemma2", "phi"])
def test_each_rank_reads_its_part_of_every_matrix(model_type: str, library_path: Path) -> None:
    path = path_of(model_type, library_path)
    whole = declared(path, ALONE)
    parts = [declared(path, rank_of(2, rank)) for rank in (0, 1)]
    elements = [
        sum(parameter.num_elements for parameter in made.plan if isinstance(parameter, PackedParameter))
        for made in (whole, *parts)
    ]
    assert sum(elements[1:]) == elements[0]
    assert max(elements[1:]) - min(elements[1:]) <= 2 * 64, (
        "a row of embedding and head each, as the vocabulary is odd"
    )
    assert {made.plan.num_params for made in parts} == {whole.plan.num_params}
    assert parts[0].model.num_kv_heads == whole.model.num_kv_heads // 2


@pytest.mark.parametrize(
    ("model_type", "changed", "num_ranks", "quantization", "reason"),
    [
        ("opt", {}, 2, "none", "must be 1 for OPTForCausalLM .*: transformers has no plan"),
        ("hunyuan_v1_dense", {}, 2, "none", "transformers has no plan"),
        ("gpt_neox", {}, 3, "none", "3 does not divide the 4 attention heads"),
        ("gpt_neox", {"intermediate_size": 97}, 2, "none", r"the 97 outputs of .*\*.mlp.dense_h_to_4h"),
        ("llama", {"intermediate_size": 97}, 2, "none", r"the 97 inputs of model.layers.\*.mlp.down_proj"),
        ("gpt_neox", {}, 2, "int4", "leaves each rank 48 columns of .*dense_4h_to_h, but int4"),
        ("llama", {}, 2, "int4", "leaves each rank 48 columns of .*down_proj, but int4"),
    ],
)
def test_what_cannot_be_parted_is_refused_before_a_weight_is_read(
    model_type: str,
    changed: dict[str, object],
    num_ranks: int,
    quantization: str,
    reason: str,
    tmp_path: Path,
) -> None:
    path = write_checkpoint(model_type, tmp_path / "model", **changed)
    with pytest.raises(ConfigError, match=reason):
        declared(path, rank_of(num_ranks), quantization)


def test_layers_without_a_plan_of_what_passes_between_them_are_no_stages(library_path: Path) -> None:
    stage = cast(Stage, SimpleNamespace(index=0, count=2))
    with pytest.raises(ConfigError, match="--pipeline-parallel-size must be 1 for OPTForCausalLM"):
        declared(path_of("opt", library_path), Mesh(stage=stage))


@pytest.mark.parametrize(
    ("entry", "style", "reason"),
    [
        (
            "layers.*.mlp.dense_h_to_4h",
            "packed_colwise",
            "wants .*dense_h_to_4h 'packed_colwise', which is not",
        ),
        ("layers.*.attention.dense", "nobodys", "wants .*attention.dense 'nobodys'"),
        ("layers.*.input_layernorm", "sequence_parallel", "wants .*input_layernorm 'sequence_parallel'"),
        # Its queries, keys and values do not become those of this rank.
        ("layers.*.attention.query_key_value", "replicate", "by the plan of .* 64 inputs instead of 32"),
    ],
)
def test_a_plan_that_is_not_understood_is_refused(
    entry: str, style: str, reason: str, library_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import GPTNeoXConfig

    plan = {**(GPTNeoXConfig.base_model_tp_plan or {}), entry: style}
    monkeypatch.setattr(GPTNeoXConfig, "base_model_tp_plan", plan)
    with pytest.raises(SplitServeError, match=reason):
        declared(path_of("gpt_neox", library_path), rank_of(2))
