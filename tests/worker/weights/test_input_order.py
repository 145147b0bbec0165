"""Matrices whose inputs are out of order are kept as integers, by their groups, where all parts agree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.quantization.reader import read_quantization
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.layers.parameter import PackedParameter, Part
from splitserve.worker.layers.weight_plan import WeightPlan
from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.quantization import GroupForm
from splitserve.worker.weights import loading
from splitserve.worker.weights.loading import load_weights
from tests.worker.weights.quantized import CASES, Made

CPU = CpuDevice()
SHAPE = (48, 80)
FORMS = {
    "gptq-act-order": GroupForm(4, 16, True),
    "gptq-act-order-symmetric": GroupForm(4, 16, False),
    "packed-act-order": GroupForm(4, 16, False),
    "packed-act-order-8-bits": GroupForm(8, 16, True),
}


def make(name: str, seed: int = 1) -> Made:
    return CASES[name].make(*SHAPE, torch.Generator().manual_seed(seed))


def load(path: Path, name: str, made: Sequence[Made], *parts: Part) -> PackedParameter:
    """A parameter of parts of the matrices m0, m1 and so on."""
    tensors = {
        f"m{number}.{last}": tensor.contiguous()
        for number, each in enumerate(made)
        for last, tensor in each.tensors.items()
    }
    save_file(tensors, path / "model.safetensors")
    fields = Fields({"quantization_config": CASES[name].config}, "config.json")
    plan = WeightPlan(quantization=read_quantization(Path(), fields))
    shape = (sum(part.num_rows for part in parts), len(parts[0].taken_inputs))
    parameter = plan.declare_linear(shape, parts, may_change_order=True)
    load_weights(path, plan, torch.bfloat16, CPU, lambda loaded, total: None)
    assert plan.num_bytes == plan.planned_bytes(torch.bfloat16, CPU)
    return parameter


def matrix_of(parameter: PackedParameter) -> torch.Tensor:
    """The matrix as a layer multiplies with it, by products with unit vectors."""
    rows, columns = parameter.shape
    x = torch.eye(columns, dtype=torch.bfloat16)
    if parameter.order is not None:
        ordered = torch.empty(columns, len(parameter.order), dtype=x.dtype)
        ops.inputs.take(ordered, x, parameter.order)
        x = ordered
    out = torch.empty(columns, rows)
    ops.linear(out, x, parameter.weight)  # type: ignore[arg-type]
    return out.t()


def form_of(parameter: PackedParameter) -> object:
    return parameter.weight.form  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("outputs", [None, range(5, 40)])
@pytest.mark.parametrize("chunk_bytes", [2000, 2**24])
def test_integers_are_kept_and_multiplied_as_the_format_says(
    name: str, outputs: range | None, chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "CHUNK_BYTES", chunk_bytes)
    made = make(name)
    parameter = load(tmp_path, name, [made], Part("m0.weight", SHAPE, outputs=outputs))
    assert form_of(parameter) == FORMS[name]
    assert parameter.order is not None
    rows = outputs or range(SHAPE[0])
    assert torch.equal(matrix_of(parameter), made.plain[rows.start : rows.stop])


def test_fused_matrices_share_the_order_of_their_inputs(tmp_path: Path) -> None:
    name = "gptq-act-order"
    made = [make(name, seed) for seed in (1, 2)]
    parts = [Part("m0.weight", SHAPE), Part("m1.weight", SHAPE, SHAPE[0])]
    parameter = load(tmp_path, name, made, *parts)
    assert form_of(parameter) == FORMS[name]
    assert torch.equal(matrix_of(parameter), torch.cat([each.plain for each in made]))


@pytest.mark.parametrize("other", [range(SHAPE[1]), range(SHAPE[1] - 1, -1, -1)])
def test_fused_matrices_of_different_orders_become_floats(other: range, tmp_path: Path) -> None:
    name = "gptq-act-order"
    made = [make(name, seed) for seed in (1, 2)]
    order = torch.tensor(other) // 16
    codes = torch.zeros(SHAPE[1] // 8, SHAPE[0], dtype=torch.int32)
    made[1] = Made({**made[1].tensors, "qweight": codes, "g_idx": order.int()}, made[1].plain)
    parts = [Part("m0.weight", SHAPE), Part("m1.weight", SHAPE, SHAPE[0])]
    parameter = load(tmp_path, name, made, *parts)
    assert form_of(parameter) == "plain"
    assert parameter.order is None
    assert torch.equal(matrix_of(parameter)[: SHAPE[0]], made[0].plain.bfloat16().float())


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("inputs", [range(40), range(40, 80), range(7, 50), range(79, 80)])
def test_a_shard_holds_parts_of_groups_and_is_as_exact(name: str, inputs: range, tmp_path: Path) -> None:
    made = make(name)
    parameter = load(tmp_path, name, [made], Part("m0.weight", SHAPE, inputs=inputs))
    assert isinstance(form_of(parameter), GroupForm)
    assert torch.equal(matrix_of(parameter), made.plain[:, inputs.start : inputs.stop])


def test_groups_of_any_sizes_are_as_exact(tmp_path: Path) -> None:
    name = "gptq-act-order"
    made = make(name)
    # Some have more inputs than the config says, others none.
    groups = made.tensors["g_idx"].clone()
    groups[groups == 4] = 1
    groups[:3] = 3
    changed = Made({**made.tensors, "g_idx": groups}, made.plain)
    parameter = load(tmp_path, name, [changed], Part("m0.weight", SHAPE))
    assert parameter.order is not None
    same = (groups == made.tensors["g_idx"]).nonzero().flatten()
    assert len(same) > 40
    assert torch.equal(matrix_of(parameter)[:, same], made.plain[:, same])


@pytest.mark.parametrize("looks_at_it", ["rows", "linear"])
def test_who_does_not_look_at_the_order_gets_floats(looks_at_it: str, tmp_path: Path) -> None:
    name = "gptq-act-order"
    made = make(name)
    save_file({f"m.{last}": each for last, each in made.tensors.items()}, tmp_path / "model.safetensors")
    fields = Fields({"quantization_config": CASES[name].config}, "config.json")
    plan = WeightPlan(quantization=read_quantization(Path(), fields))
    if looks_at_it == "rows":
        parameter = plan.declare_rows("m.weight", SHAPE)
    else:
        parameter = plan.declare_linear(SHAPE, [Part("m.weight", SHAPE)])
    load_weights(tmp_path, plan, torch.bfloat16, CPU, lambda loaded, total: None)
    assert form_of(parameter) == "plain"
    assert torch.equal(matrix_of(parameter), made.plain.bfloat16().float())
