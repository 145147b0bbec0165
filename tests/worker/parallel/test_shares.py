"""Which rank holds what: everything once, but KV heads as often as they are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.checkpoint.config.model_config import ExpertConfig, ModelConfig
from splitserve.engine_core.checkpoint.config.traits import ExpertTraits
from splitserve.engine_core.errors import ConfigError
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.layers.expert_parts import StoredExperts
from splitserve.worker.layers.parameter import PackedParameter, Part
from splitserve.worker.layers.weight_plan import WeightPlan
from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import FORMS
from splitserve.worker.parallel.shares import check_shares, head_share, scaled, share
from splitserve.worker.weights import loading
from splitserve.worker.weights.loading import load_weights
from tests.checkpoints import CheckpointCache, CheckpointSpec


@given(total=st.integers(1, 500), num_ranks=st.integers(1, 64))
def test_shares_follow_each_other_and_differ_by_one_at_most(total: int, num_ranks: int) -> None:
    shares = [share(total, rank, num_ranks) for rank in range(num_ranks)]
    assert [i for part in shares for i in part] == list(range(total))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.fixture(scope="module")
def any_config(checkpoints: CheckpointCache) -> ModelConfig:
    return read_model_config(checkpoints.get(CheckpointSpec("llama")))


@given(kv_heads=st.integers(1, 16), group=st.integers(1, 16), num_ranks=st.integers(2, 64))
def test_every_query_head_lies_with_the_kv_head_it_reads(
    any_config: ModelConfig, kv_heads: int, group: int, num_ranks: int
) -> None:
    heads = kv_heads * group
    config = msgspec.structs.replace(
        any_config, num_heads=heads, num_kv_heads=kv_heads, intermediate_size=num_ranks * 7
    )
    if heads % num_ranks or (kv_heads % num_ranks and num_ranks % kv_heads):
        return
    check_shares(config, num_ranks, "none")
    shares = [head_share(config, rank, num_ranks) for rank in range(num_ranks)]
    assert [head for part in shares for head in part.queries] == list(range(heads))
    for queries, keys in shares:
        assert len(keys) == max(1, kv_heads // num_ranks)
        # The kernel gives each KV head of the rank the same number of its query heads, in order.
        local_group = len(queries) // len(keys)
        assert local_group * len(keys) == len(queries)
        for place, head in enumerate(queries):
            assert keys[place // local_group] == head // group


def test_norms_over_all_heads_are_refused_on_several_ranks(checkpoints: CheckpointCache) -> None:
    config = read_model_config(checkpoints.get(CheckpointSpec("olmo2")))
    check_shares(config, 1, "none")
    with pytest.raises(ConfigError, match="--tensor-parallel-size must be 1 for Olmo2ForCausalLM, got 2"):
        check_shares(config, 2, "none")


@dataclass
class Layout:
    """A matrix of the checkpoint, and what one rank takes of it."""

    outputs: range
    inputs: range
    transposed: bool


# Forms whose scales come from whole rows, which each rank has to read.
WHOLE_ROWS = ("int8", "w8a8")
LAYOUTS = [
    Layout(range(70), range(96), False),
    Layout(range(13, 55), range(96), False),
    Layout(range(70), range(32, 64), False),
    Layout(range(13, 55), range(96), True),
    Layout(range(70), range(32, 64), True),
]


def dense(parameter: PackedParameter) -> torch.Tensor:
    """The matrix that the kernels multiply with, fp32."""
    rows, columns = parameter.shape
    out = torch.empty(columns, rows, dtype=torch.float32)
    weight = parameter.weight
    assert isinstance(weight, PackedWeight)
    ops.linear(out, torch.eye(columns, dtype=weight.dtype), weight)
    return out.t()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_share_holds_the_numbers_that_the_whole_would(tmp_path: Path, layout: Layout, form: str) -> None:
    matrix = torch.randn(70, 96, generator=torch.Generator().manual_seed(1)).bfloat16()
    # The largest magnitude of a row, from which its scale comes, often lies with another rank.
    matrix[::2, 90] = 9.0
    stored = matrix.t().contiguous() if layout.transposed else matrix
    save_file({"m": stored}, tmp_path / "model.safetensors")
    plan = WeightPlan(forms=FORMS[form])
    shape = (stored.shape[0], stored.shape[1])
    whole = plan.declare_linear((70, 96), [Part("m", shape, 0, layout.transposed)])
    part = Part("m", shape, 0, layout.transposed, layout.outputs, layout.inputs)
    own = plan.declare_linear((len(layout.outputs), len(layout.inputs)), [part])
    loaded: list[tuple[int, int]] = []
    load_weights(
        tmp_path, plan, torch.bfloat16, CpuDevice(), lambda done, total: loaded.append((done, total))
    )
    rows, columns = layout.outputs, layout.inputs
    expected = dense(whole)[rows.start : rows.stop, columns.start : columns.stop]
    assert torch.equal(dense(own), expected)
    assert loaded[-1][0] == loaded[-1][1]
    if form not in WHOLE_ROWS:
        assert loaded[-1][1] == 2 * (70 * 96 + len(rows) * len(columns)), "no more is read than held"
    assert plan.num_params == 70 * 96


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stored_as", ["tensors of each", "stacked", "transposed pairs"])
def test_ranks_hold_the_same_units_of_every_expert(
    tmp_path: Path, stored_as: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces smaller than an expert; whose rows fill no whole panels."""
    monkeypatch.setattr(loading, "CHUNK_BYTES", 1000)
    inner, outer = torch.randn(3, 2 * 64, 40).bfloat16(), torch.randn(3, 40, 64).bfloat16()
    # The largest magnitude of a row, from which its scale comes, often lies with another rank.
    outer[:, ::2, 20] = 9.0
    if stored_as == "stacked":
        traits = ExpertTraits(inner=("both",), outer="back")
        tensors = {"m.both": inner, "m.back": outer}
    elif stored_as == "transposed pairs":
        traits = ExpertTraits(inner=("both",), outer="back", is_transposed=True, has_pairs=True)
        pairs = inner.unflatten(1, (2, 64)).transpose(1, 2).flatten(1, 2)
        tensors = {"m.both": pairs.transpose(1, 2).contiguous(), "m.back": outer.transpose(1, 2).contiguous()}
    else:
        traits = ExpertTraits(inner=("{}.gate", "{}.up"), outer="{}.back")
        tensors = {f"m.{i}.back": outer[i].contiguous() for i in range(3)}
        for half, name in enumerate(("gate", "up")):
            halves = inner.unflatten(1, (2, 64))[:, half]
            tensors |= {f"m.{i}.{name}": halves[i].contiguous() for i in range(3)}
    save_file(tensors, tmp_path / "model.safetensors")
    stored = StoredExperts(
        "m", 40, ExpertConfig(num_experts=3, num_chosen=1, inner_size=64), traits, range(3)
    )

    def declare(plan: WeightPlan, units: range) -> list[PackedParameter]:
        return [
            plan.declare_experts(3, (2 * len(units), 40), stored.inner(units)),
            plan.declare_experts(3, (40, len(units)), stored.outer(units)),
        ]

    plan, own_plan, units = WeightPlan(forms=FORMS[form]), WeightPlan(forms=FORMS[form]), range(32, 64)
    whole, own = declare(plan, range(64)), declare(own_plan, units)
    loaded: list[int] = []
    for each in (plan, own_plan):
        load_weights(tmp_path, each, torch.bfloat16, CpuDevice(), lambda done, total: loaded.append(done))
    expected = dense_experts(whole[0])
    if traits.has_pairs:
        assert torch.equal(dense_experts(own[0]), expected[:, 64:])
        expected = expected.unflatten(1, (64, 2)).transpose(1, 2).flatten(1, 2)
    else:
        own_rows = expected.unflatten(1, (2, 64))[:, :, 32:].flatten(1, 2)
        assert torch.equal(dense_experts(own[0]), own_rows)
    assert torch.equal(dense_experts(own[1]), dense_experts(whole[1])[:, :, 32:])
    if form == "none":
        assert torch.equal(expected, inner.float())
        assert torch.equal(dense_experts(whole[1]), outer.float())
    assert loaded[-1] == 2 * (3 * 64 * 40 + 3 * 40 * (64 if form in WHOLE_ROWS else 32))
    assert own_plan.num_params == 3 * 3 * 64 * 40


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_stacked", [False, True])
def test_a_rank_can_hold_some_experts_whole(tmp_path: Path, is_stacked: bool, form: str) -> None:
    matrices = torch.randn(5, 40, 64).bfloat16()
    traits = ExpertTraits(inner=("both",), outer="back" if is_stacked else "{}.back")
    tensors = {f"m.{i}.back": matrix for i, matrix in enumerate(matrices.unbind())}
    save_file({"m.back": matrices} if is_stacked else tensors, tmp_path / "model.safetensors")
    config = ExpertConfig(num_experts=5, num_chosen=1, inner_size=64)
    whole, own = [
        _load_outer(tmp_path, StoredExperts("m", 40, config, traits, held), len(held), form)
        for held in (range(5), range(2, 5))
    ]
    assert torch.equal(own, whole[2:])


def _load_outer(folder: Path, stored: StoredExperts, count: int, form: str) -> torch.Tensor:
    # What other ranks hold is expected in the file.
    plan = WeightPlan(ignored_names=["m."], forms=FORMS[form])
    parameter = plan.declare_experts(count, (40, 64), stored.outer(range(64)))
    load_weights(folder, plan, torch.bfloat16, CpuDevice(), lambda done, total: None)
    return dense_experts(parameter)


def dense_experts(parameter: PackedParameter) -> torch.Tensor:
    """The matrices that the kernels multiply with, fp32 [E, N, K]."""
    weight = parameter.weight
    assert isinstance(weight, PackedWeight)
    count, (rows, columns) = weight.num_experts, weight.shape
    out = torch.empty(count * columns, rows // count)
    starts = torch.arange(count + 1, dtype=torch.int32) * columns
    ops.experts.linear(out, torch.eye(columns, dtype=weight.dtype).repeat(count, 1), weight, starts)
    return out.view(count, columns, rows // count).transpose(1, 2)


def test_parts_of_one_tensor_fill_one_parameter(tmp_path: Path) -> None:
    """As a rank's heads of queries, keys and values do, which GPT-2 keeps side by side."""
    stored = torch.randn(6, 12, generator=torch.Generator().manual_seed(2))
    bias = torch.arange(12.0)
    save_file({"m": stored, "b": bias}, tmp_path / "model.safetensors")
    plan = WeightPlan()
    taken = [scaled(range(1, 2), 2, offset) for offset in (0, 4, 8)]
    matrix = plan.declare_linear(
        (6, 6), [Part("m", (6, 12), 2 * i, True, outputs) for i, outputs in enumerate(taken)]
    )
    vector = plan.declare_vector(
        6, [Part("b", (12,), 2 * i, outputs=outputs) for i, outputs in enumerate(taken)]
    )
    load_weights(tmp_path, plan, torch.float32, CpuDevice(), lambda done, total: None)
    columns = [i for outputs in taken for i in outputs]
    assert columns == [2, 3, 6, 7, 10, 11]
    assert torch.equal(dense(matrix), stored.t()[columns])
    assert torch.equal(vector.tensor, bias[columns])
    assert plan.num_params == 6 * 12 + 12
