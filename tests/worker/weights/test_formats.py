"""Quantized matrices become exactly what their format says, and files that are wrong are refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.quantization.reader import read_quantization
from splitserve.engine_core.errors import ModelLoadError
from splitserve.worker.device.base import Device
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.layers.parameter import HeadPairs, PackedParameter, Part
from splitserve.worker.layers.weight_plan import WeightPlan
from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import FORMS, GroupForm, WeightForm
from splitserve.worker.weights import loading
from splitserve.worker.weights.loading import load_weights
from tests.checkpoints import CheckpointCache, CheckpointSpec
from tests.worker.models.driver import Driver
from tests.worker.ops.helpers import rms_error
from tests.worker.weights.quantized import CASES, Case, Tensors, packed, write_quantized

CPU = CpuDevice()
SINGLE = "model.safetensors"
SHAPE = (48, 80)
PROMPT = list(range(20, 45))


def rows_of(parameter: PackedParameter) -> torch.Tensor:
    weight = parameter.weight
    out = torch.empty(weight.shape, dtype=weight.dtype)  # type: ignore[attr-defined]
    ops.embedding(out, torch.arange(weight.shape[0]), weight)  # type: ignore[arg-type]
    return out.float()


def plan_of(case: Case, part: Part, shape: tuple[int, int]) -> tuple[WeightPlan, PackedParameter]:
    quantization = read_quantization(Path(), Fields({"quantization_config": case.config}, "config.json"))
    plan = WeightPlan(quantization=quantization)
    return plan, plan.declare_linear(shape, [part])


def write(path: Path, tensors: Tensors) -> None:
    named = {f"m.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(named, path / SINGLE)


def load(path: Path, plan: WeightPlan) -> None:
    load_weights(path, plan, torch.float32, CPU, lambda loaded, total: None)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [
        (None, None),
        (range(16, 32), range(32, 64)),
        (range(5, 31), None),
        (None, range(3, 50)),
        (range(7, 9), range(79, 80)),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [2000, 2**24])
def test_a_matrix_or_a_shard_of_it_is_what_the_format_says(
    name: str,
    outputs: range | None,
    inputs: range | None,
    chunk_bytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "CHUNK_BYTES", chunk_bytes)
    made = CASES[name].make(*SHAPE, torch.Generator().manual_seed(1))
    write(tmp_path, made.tensors)
    rows, columns = outputs or range(SHAPE[0]), inputs or range(SHAPE[1])
    part = Part("m.weight", SHAPE, outputs=outputs, inputs=inputs)
    plan, parameter = plan_of(CASES[name], part, (len(rows), len(columns)))
    seen: list[tuple[int, int]] = []
    load_weights(tmp_path, plan, torch.float32, CPU, lambda loaded, total: seen.append((loaded, total)))
    assert torch.equal(rows_of(parameter), made.plain[rows.start : rows.stop, columns.start : columns.stop])
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1]


def test_pairs_of_heads_are_taken_apart_in_quantized_matrices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "CHUNK_BYTES", 1)
    made = CASES["gptq"].make(*SHAPE, torch.Generator().manual_seed(1))
    write(tmp_path, made.tensors)
    pairs = HeadPairs(16, 16)
    plan, parameter = plan_of(CASES["gptq"], Part("m.weight", SHAPE, pairs=pairs), SHAPE)
    load(tmp_path, plan)
    assert torch.equal(rows_of(parameter), pairs.parted(made.plain))


@pytest.mark.parametrize("name", CASES)
def test_a_quantized_model_generates_what_the_dequantized_one_does(
    name: str, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    source = checkpoints.get(CheckpointSpec("llama"))
    write_quantized(source, CASES[name], tmp_path / "quantized", tmp_path / "plain")
    exact, plain = Driver(tmp_path / "plain"), Driver(tmp_path / "plain", torch.bfloat16)
    assert Driver(tmp_path / "quantized").greedy(PROMPT, 12) == exact.greedy(PROMPT, 12)
    # Integers are multiplied as they are, so that the weights of the second are rounded and ours are not.
    ours, logits = Driver(tmp_path / "quantized", torch.bfloat16), exact.prefill_logits(PROMPT)
    error = rms_error(ours.prefill_logits(PROMPT), logits)
    assert error <= 1.5 * rms_error(plain.prefill_logits(PROMPT), logits)


@pytest.mark.parametrize(
    ("name", "quantization"), [("int8-tensor", "int8"), ("packed-act-order-8-bits", "int4")]
)
def test_a_quantized_model_can_be_quantized_once_more(
    name: str, quantization: str, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    source = checkpoints.get(CheckpointSpec("llama"))
    write_quantized(source, CASES[name], tmp_path / "quantized", tmp_path / "plain")
    expected = Driver(tmp_path / "plain", torch.bfloat16, quantization).greedy(PROMPT, 12)
    assert Driver(tmp_path / "quantized", torch.bfloat16, quantization).greedy(PROMPT, 12) == expected


def test_fused_projections_may_be_quantized(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    source = checkpoints.get(CheckpointSpec("phi3"))
    write_quantized(source, CASES["gptq-act-order"], tmp_path / "quantized", tmp_path / "plain")
    expected = Driver(tmp_path / "plain").greedy(PROMPT, 12)
    assert Driver(tmp_path / "quantized").greedy(PROMPT, 12) == expected


@pytest.mark.parametrize(
    ("architecture", "name"),
    [("qwen3moe", "gptq"), ("qwen3moe", "awq"), ("qwen3moe", "deepseek"), ("deepseekv3", "deepseek")],
)
def test_experts_with_tensors_of_their_own_may_be_quantized(
    architecture: str, name: str, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    """Of DeepSeek also the matrices of latents, which are used the other way round."""
    source = checkpoints.get(CheckpointSpec(architecture))
    write_quantized(source, CASES[name], tmp_path / "quantized", tmp_path / "plain")
    names = load_file(tmp_path / "quantized" / SINGLE)
    stored = (".experts.0.up_proj.qweight", ".experts.0.up_proj.weight_scale_inv")
    assert any(each.endswith(stored) for each in names)
    expected = Driver(tmp_path / "plain").greedy(PROMPT, 12)
    assert Driver(tmp_path / "quantized").greedy(PROMPT, 12) == expected


def test_modules_that_the_config_leaves_out_stay_plain(tmp_path: Path) -> None:
    case = Case(
        {**CASES["fp8-per-tensor"].config, "modules_to_not_convert": ["n"]}, CASES["fp8-per-tensor"].make
    )
    made = case.make(*SHAPE, torch.Generator().manual_seed(1))
    plain = torch.randn(SHAPE)
    save_file({"n.weight": plain, **{f"m.{k}": v for k, v in made.tensors.items()}}, tmp_path / SINGLE)
    quantization = read_quantization(Path(), Fields({"quantization_config": case.config}, "config.json"))
    plan = WeightPlan(quantization=quantization)
    left_out = plan.declare_linear(SHAPE, [Part("n.weight", SHAPE)])
    quantized = plan.declare_linear(SHAPE, [Part("m.weight", SHAPE)])
    load(tmp_path, plan)
    assert torch.equal(rows_of(left_out), plain)
    assert torch.equal(rows_of(quantized), made.plain)


@pytest.fixture
def no_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if the memory of weights is taken."""

    def allocate(plan: WeightPlan, dtype: torch.dtype, device: Device) -> None:
        raise AssertionError("memory was taken before the check was over")

    monkeypatch.setattr(WeightPlan, "allocate", allocate)


def replaced(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: change(tensors[name])}


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def with_nan(tensor: torch.Tensor) -> torch.Tensor:
    return (
        tensor.clone()
        .view(-1)
        .index_fill(0, torch.tensor([tensor.numel() - 1]), float("nan"))
        .view(tensor.shape)
    )


DAMAGES = [
    ("gptq", without("scales"), "missing tensor 'm.scales'"),
    ("gptq", without("qzeros"), "missing tensor 'm.qzeros'"),
    ("gptq-act-order", without("g_idx"), "missing tensor 'm.g_idx'"),
    ("gptq", replaced("scales", lambda t: t[:2]), "has shape [2, 48], config.json asks for [5, 48]"),
    ("gptq", replaced("qweight", lambda t: t[:4]), "has shape [4, 48], config.json asks for [10, 48]"),
    ("gptq", replaced("qweight", torch.Tensor.float), "has dtype F32"),
    ("gptq", replaced("scales", with_nan), "not a finite number"),
    ("gptq", replaced("g_idx", lambda t: t + 1), "names a group that is not from 0 to 4"),
    ("gptq", replaced("g_idx", torch.neg), "names a group that is not from 0 to 4"),
    ("awq", replaced("qzeros", lambda t: t[:, :2]), "has shape [5, 2], config.json asks for [5, 6]"),
    ("awq", replaced("scales", with_nan), "not a finite number"),
    ("packed", without("weight_shape"), "missing tensor 'm.weight_shape'"),
    ("packed", replaced("weight_shape", lambda t: t * 2), "says [96, 160], config.json asks for [48, 80]"),
    ("packed-asymmetric", without("weight_zero_point"), "missing tensor 'm.weight_zero_point'"),
    ("packed", replaced("weight_scale", lambda t: t / 0), "not a finite number"),
    ("int8-channel", replaced("weight", torch.Tensor.int), "has dtype I32"),
    ("fp8-tensor", without("weight_scale"), "missing tensor 'm.weight_scale'"),
    ("fp8-tensor", replaced("weight_scale", with_nan), "not a finite number"),
    (
        "deepseek",
        replaced("weight_scale_inv", lambda t: t[:1]),
        "has shape [1, 3], config.json asks for [2, 3]",
    ),
    ("deepseek", replaced("weight", lambda t: t[:40]), "has shape [40, 80], config.json asks for [48, 80]"),
]


@pytest.mark.usefixtures("no_allocation")
@pytest.mark.parametrize(("name", "damage", "message"), DAMAGES)
def test_a_damaged_matrix_is_refused_before_memory_is_taken(
    name: str, damage: Callable[[Tensors], Tensors], message: str, tmp_path: Path
) -> None:
    made = CASES[name].make(*SHAPE, torch.Generator().manual_seed(1))
    write(tmp_path, damage(made.tensors))
    plan, _ = plan_of(CASES[name], Part("m.weight", SHAPE), SHAPE)
    with pytest.raises(ModelLoadError) as error:
        load(tmp_path, plan)
    assert message in str(error.value)


@pytest.mark.usefixtures("no_allocation")
@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("gptq", (44, 80), "whose sizes are no multiples of 8"),
        ("gptq", (48, 84), "whose sizes are no multiples of 8"),
        ("awq", (44, 80), "44 outputs, which is no multiple of 8"),
    ],
)
def test_sizes_that_no_words_hold_are_refused(
    name: str, shape: tuple[int, int], message: str, tmp_path: Path
) -> None:
    write(tmp_path, CASES[name].make(*SHAPE, torch.Generator().manual_seed(1)).tensors)
    plan, _ = plan_of(CASES[name], Part("m.weight", shape), shape)
    with pytest.raises(ModelLoadError, match=message):
        load(tmp_path, plan)


@pytest.mark.usefixtures("no_allocation")
def test_matrices_that_a_model_stores_turned_cannot_be_quantized(tmp_path: Path) -> None:
    write(tmp_path, CASES["gptq"].make(*SHAPE, torch.Generator().manual_seed(1)).tensors)
    plan, _ = plan_of(CASES["gptq"], Part("m.weight", SHAPE, transposed=True), (SHAPE[1], SHAPE[0]))
    with pytest.raises(ModelLoadError, match="an architecture that stores it turned"):
        load(tmp_path, plan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_float_that_is_no_number_is_found_while_it_is_read(dtype: torch.dtype, tmp_path: Path) -> None:
    made = CASES["fp8-tensor"].make(*SHAPE, torch.Generator().manual_seed(1))
    bits = made.tensors["weight"].view(torch.uint8).clone()
    bits[3, 3] = 0x7F
    write(tmp_path, {**made.tensors, "weight": bits.view(torch.float8_e4m3fn)})
    plan, _ = plan_of(CASES["fp8-tensor"], Part("m.weight", SHAPE), SHAPE)
    with pytest.raises(ModelLoadError, match=r"'m\.weight' holds values that are not finite"):
        load_weights(tmp_path, plan, dtype, CPU, lambda loaded, total: None)


def test_what_the_weights_take_in_memory_is_logged(
    checkpoints: CheckpointCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = checkpoints.get(CheckpointSpec("llama"))
    write_quantized(source, CASES["gptq"], tmp_path / "quantized", tmp_path / "plain")
    with caplog.at_level("INFO"):
        Driver(tmp_path / "quantized")
    (line,) = [record.getMessage() for record in caplog.records if "weights_quantized" in record.getMessage()]
    assert "bytes_in_files=" in line
    assert "bytes_in_memory=" in line
    assert "tensors_ignored" not in caplog.text


def test_scales_of_activations_and_caches_are_no_unexpected_tensors(
    checkpoints: CheckpointCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = checkpoints.get(CheckpointSpec("llama"))
    write_quantized(source, CASES["modelopt"], tmp_path / "quantized", tmp_path / "plain")
    tensors = load_file(tmp_path / "quantized" / SINGLE)
    for name in ("q_proj.input_scale", "k_proj.k_scale", "v_proj.v_scale", "attn.k_scale", "kv_scale"):
        tensors[f"model.layers.0.self_attn.{name}"] = torch.tensor(1.0)
    save_file(tensors, tmp_path / "quantized" / SINGLE)
    Driver(tmp_path / "quantized")
    assert "tensors_ignored" not in caplog.text


def test_modelopts_own_file_says_what_config_json_does_not(
    checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    source = checkpoints.get(CheckpointSpec("llama"))
    write_quantized(source, CASES["modelopt"], tmp_path / "quantized", tmp_path / "plain")
    path = tmp_path / "quantized"
    config = json.loads((path / "config.json").read_text())
    del config["quantization_config"]
    (path / "config.json").write_text(json.dumps(config))
    inner = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    (path / "hf_quant_config.json").write_text(json.dumps({"quantization": inner}))
    assert read_model_config(path).quantization is not None
    assert Driver(path).greedy(PROMPT, 8) == Driver(tmp_path / "plain").greedy(PROMPT, 8)


def test_a_checkpoint_in_half_precision_says_so(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    source = checkpoints.get(dataclasses.replace(CheckpointSpec("llama"), dtype=torch.float16))
    write_quantized(source, CASES["gptq"], tmp_path / "quantized", tmp_path / "plain")
    assert read_model_config(tmp_path / "quantized").dtype == "float16"


def exact_case() -> Case:
    """Symmetric integers of 4 bits in groups of 32."""
    config = json.loads(json.dumps(CASES["packed"].config))
    config["config_groups"]["group_0"]["weights"]["group_size"] = 32
    return Case(config, packed(group=32))


def products(parameter: PackedParameter) -> torch.Tensor:
    """The matrix as the kernels multiply with it, by products with unit vectors."""
    rows, columns = parameter.shape
    out = torch.empty(columns, rows)
    ops.linear(out, torch.eye(columns, dtype=torch.bfloat16), parameter.weight)  # type: ignore[arg-type]
    return out.t()


def kept(parameter: PackedParameter) -> object:
    return parameter.weight.form  # type: ignore[attr-defined]


FP8 = GroupForm(8, 128, has_offsets=False, is_float=True)
# What codes of a file are kept as, from all inputs and from 16 on.
KEPT = {
    "gptq": (GroupForm(4, 16, True), GroupForm(4, 16, True)),
    "gptq-symmetric": (GroupForm(4, 16, False), GroupForm(4, 16, False)),
    "gptq-8-bits": (GroupForm(8, 16, True), GroupForm(8, 16, True)),
    "gptq-no-groups": (GroupForm(4, 128, True), GroupForm(4, 16, True)),
    "gptq-v2": (GroupForm(4, 16, True), GroupForm(4, 16, True)),
    "awq": (GroupForm(4, 16, True), GroupForm(4, 16, True)),
    "awq-no-groups": (GroupForm(4, 128, True), GroupForm(4, 16, True)),
    "packed": (GroupForm(4, 16, False), GroupForm(4, 16, False)),
    "packed-8-bits": (GroupForm(8, 16, False), GroupForm(8, 16, False)),
    "packed-asymmetric": (GroupForm(4, 16, True), GroupForm(4, 16, True)),
    "packed-channel": (GroupForm(4, 128, True), GroupForm(4, 16, True)),
    "int8-channel": ("int8", "int8"),
    "int8-group": (GroupForm(8, 16, False), GroupForm(8, 16, False)),
    "fp8-channel": (FP8, FP8._replace(group=16)),
    "fp8-tensor": (FP8, FP8._replace(group=16)),
    "fp8-block": (FP8._replace(group=16), FP8._replace(group=16)),
    "modelopt": (FP8, FP8._replace(group=16)),
}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("chunk_bytes", [2000, 2**24])
def test_integers_are_kept_and_multiplied_as_the_format_says(
    name: str, chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "CHUNK_BYTES", chunk_bytes)
    made = CASES[name].make(*SHAPE, torch.Generator().manual_seed(1))
    write(tmp_path, made.tensors)
    for form, outputs, inputs in zip(
        KEPT[name], (range(48), range(5, 40)), (range(80), range(16, 80)), strict=True
    ):
        part = Part("m.weight", SHAPE, outputs=outputs, inputs=inputs)
        plan, parameter = plan_of(CASES[name], part, (len(outputs), len(inputs)))
        load_weights(tmp_path, plan, torch.bfloat16, CPU, lambda loaded, total: None)
        assert kept(parameter) == form
        expected = made.plain[outputs.start : outputs.stop, inputs.start : inputs.stop]
        assert torch.equal(products(parameter), expected)


@pytest.mark.parametrize(
    ("asked", "name", "form"),
    [
        ("int4", "gptq", GroupForm(4, 16, True)),
        ("int4", "int8-group", "int4"),
        ("int8", "awq", GroupForm(4, 16, True)),
        ("int8", "int8-group", GroupForm(8, 16, False)),
        ("w8a8", "int8-channel", "w8a8"),
        ("w8a8", "int8-group", "w8a8"),
    ],
)
def test_integers_of_more_bits_than_are_asked_for_are_rounded(
    asked: WeightForm, name: str, form: object, tmp_path: Path
) -> None:
    made = CASES[name].make(*SHAPE, torch.Generator().manual_seed(1))
    write(tmp_path, made.tensors)
    fields = Fields({"quantization_config": CASES[name].config}, "config.json")
    plan = WeightPlan(quantization=read_quantization(Path(), fields), forms=FORMS[asked])
    parameter = plan.declare_linear(SHAPE, [Part("m.weight", SHAPE)])
    load_weights(tmp_path, plan, torch.bfloat16, CPU, lambda loaded, total: None)
    assert kept(parameter) == form
    if form == asked and name == "int8-group":
        whole = PackedWeight(SHAPE, torch.bfloat16, asked)
        whole.fill(made.plain)
        assert torch.equal(parameter.weight.data, whole.data)  # type: ignore[attr-defined]


@pytest.mark.parametrize("has_byte_groups", [True, False])
def test_groups_of_few_bits_stay_where_kernels_make_bytes_of_their_activations(
    has_byte_groups: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuDevice, "multiplies_byte_groups", has_byte_groups)
    made = CASES["awq"].make(*SHAPE, torch.Generator().manual_seed(1))
    write(tmp_path, made.tensors)
    fields = Fields({"quantization_config": CASES["awq"].config}, "config.json")
    plan = WeightPlan(quantization=read_quantization(Path(), fields), forms=FORMS["w8a8"])
    parameter = plan.declare_linear(SHAPE, [Part("m.weight", SHAPE)])
    load_weights(tmp_path, plan, torch.bfloat16, CPU, lambda loaded, total: None)
    form = GroupForm(4, 16, True, takes_int8=True)
    assert kept(parameter) == (form if has_byte_groups else "w8a8")
    error = (products(parameter) - made.plain).abs().max() / made.plain.abs().max()
    assert error < (1e-6 if has_byte_groups else 4e-3)


@pytest.mark.parametrize("dynamic", [True, False])
def test_int8_for_int8_activations_is_kept_so(dynamic: bool, tmp_path: Path) -> None:
    config = json.loads(json.dumps(CASES["int8-channel"].config))
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": dynamic}
    config["config_groups"]["group_0"]["input_activations"] = inputs
    case = Case(config, CASES["int8-channel"].make)
    made = case.make(*SHAPE, torch.Generator().manual_seed(1))
    write(tmp_path, made.tensors)
    plan, parameter = plan_of(case, Part("m.weight", SHAPE), SHAPE)
    load_weights(tmp_path, plan, torch.bfloat16, CPU, lambda loaded, total: None)
    assert kept(parameter) == "w8a8"
    # A unit vector is 127 times its scale.
    assert torch.allclose(products(parameter), made.plain, rtol=1e-6, atol=0)
    assert plan.quantization is not None
    assert bool(plan.quantization.notes) is not dynamic


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scales_whose_products_are_no_numbers_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    made = CASES["packed-asymmetric"].make(*SHAPE, torch.Generator().manual_seed(1))
    made.tensors["weight_scale"][7, 3] = 3e38
    write(tmp_path, made.tensors)
    plan, _ = plan_of(CASES["packed-asymmetric"], Part("m.weight", SHAPE), SHAPE)
    with pytest.raises(ModelLoadError, match=r"'m\.weight_packed' holds values that are not finite numbers"):
        load_weights(tmp_path, plan, dtype, CPU, lambda loaded, total: None)


def test_pairs_of_heads_are_taken_apart_in_integers(tmp_path: Path) -> None:
    case = exact_case()
    made = case.make(64, 96, torch.Generator().manual_seed(1))
    write(tmp_path, made.tensors)
    pairs = HeadPairs(16, 8)
    plan, parameter = plan_of(case, Part("m.weight", (64, 96), pairs=pairs), (64, 96))
    load_weights(tmp_path, plan, torch.bfloat16, CPU, lambda loaded, total: None)
    assert torch.equal(products(parameter), pairs.parted(made.plain))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("int8-tensor", torch.bfloat16),
        ("packed", torch.float32),
    ],
)
def test_other_integers_become_floats(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    made = CASES[name].make(*SHAPE, torch.Generator().manual_seed(1))
    write(tmp_path, made.tensors)
    plan, parameter = plan_of(CASES[name], Part("m.weight", SHAPE), SHAPE)
    load_weights(tmp_path, plan, dtype, CPU, lambda loaded, total: None)
    assert kept(parameter) == "plain"


def test_integers_whose_groups_a_shard_cuts_become_floats(tmp_path: Path) -> None:
    case = exact_case()
    made = case.make(64, 96, torch.Generator().manual_seed(1))
    write(tmp_path, made.tensors)
    plan, parameter = plan_of(case, Part("m.weight", (64, 96), inputs=range(8, 72)), (64, 64))
    load_weights(tmp_path, plan, torch.bfloat16, CPU, lambda loaded, total: None)
    assert kept(parameter) == "plain"
    assert torch.equal(rows_of(parameter), made.plain[:, 8:72].bfloat16().float())


def test_a_matrix_of_integers_and_floats_becomes_floats(tmp_path: Path) -> None:
    case = exact_case()
    made, other = case.make(64, 96, torch.Generator().manual_seed(1)), torch.randn(8, 96)
    save_file(
        {"n.weight": other, **{f"m.{name}": each for name, each in made.tensors.items()}}, tmp_path / SINGLE
    )
    quantization = read_quantization(Path(), Fields({"quantization_config": case.config}, "config.json"))
    plan = WeightPlan(quantization=quantization)
    fused = plan.declare_linear((72, 96), [Part("m.weight", (64, 96)), Part("n.weight", (8, 96), 64)])
    load_weights(tmp_path, plan, torch.bfloat16, CPU, lambda loaded, total: None)
    assert kept(fused) == "plain"
    assert torch.equal(products(fused), torch.cat((made.plain, other)).bfloat16().float())


def test_parts_of_different_forms_are_kept_in_one_that_holds_both(tmp_path: Path) -> None:
    cases = {"m": CASES["int8-group"], "n": exact_case()}
    made = {name: case.make(48, 96, torch.Generator().manual_seed(1)) for name, case in cases.items()}
    tensors = {
        f"{name}.{last}": tensor.contiguous()
        for name, each in made.items()
        for last, tensor in each.tensors.items()
    }
    save_file(tensors, tmp_path / SINGLE)
    config = json.loads(json.dumps(cases["n"].config))
    config["format"] = "mixed-precision"
    groups = {name: case.config["config_groups"]["group_0"] for name, case in cases.items()}  # type: ignore[index]
    for name, form in (("m", "int-quantized"), ("n", "pack-quantized")):
        groups[name] = {**groups[name], "targets": [name], "format": form}
    # Of the maker's groups.
    groups["n"]["weights"] = {**groups["n"]["weights"], "group_size": 32}
    config["config_groups"] = groups
    quantization = read_quantization(Path(), Fields({"quantization_config": config}, "config.json"))
    plan = WeightPlan(quantization=quantization)
    fused = plan.declare_linear((96, 96), [Part("m.weight", (48, 96)), Part("n.weight", (48, 96), 48)])
    load_weights(tmp_path, plan, torch.bfloat16, CPU, lambda loaded, total: None)
    assert kept(fused) == GroupForm(8, 16, False)
    assert torch.equal(products(fused), torch.cat((made["m"].plain, made["n"].plain)))
