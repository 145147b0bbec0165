"""From a checkpoint directory into parameters, and every damage on the way."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.checkpoint.safetensors_file import SafetensorsFile
from splitserve.engine_core.checkpoint.weight_files import Checkpoint, stored_dtype
from splitserve.engine_core.errors import ModelLoadError
from splitserve.worker.attention.cpu import CpuAttention
from splitserve.worker.device.base import Device
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.layers.parameter import HeadPairs, PackedParameter, Part
from splitserve.worker.layers.weight_plan import WeightPlan
from splitserve.worker.models.base import Model
from splitserve.worker.models.placement import Placement
from splitserve.worker.models.registry import load_model
from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import FORMS
from splitserve.worker.weights import loading as weights
from splitserve.worker.weights import tied_head
from splitserve.worker.weights.loading import load_weights
from tests.checkpoints import CheckpointCache, CheckpointSpec
from tests.engine_core.checkpoint.writing import file_bytes, split

CPU = CpuDevice()
SHARDED = CheckpointSpec("llama", {"attention_bias": True, "mlp_bias": True}, max_shard_bytes=40_000)
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
Tensors = dict[str, torch.Tensor]


def load(path: Path, dtype: torch.dtype = torch.float32) -> Model:
    return load_model(
        read_model_config(path), dtype, Placement(CPU, CpuAttention()), lambda loaded, total: None
    )


@pytest.fixture
def single(checkpoints: CheckpointCache, tmp_path: Path) -> Path:
    """A checkpoint of one file that a test may damage."""
    return Path(shutil.copytree(checkpoints.get(CheckpointSpec("llama")), tmp_path / "single"))


@pytest.fixture
def sharded(checkpoints: CheckpointCache, tmp_path: Path) -> Path:
    """A checkpoint of several shards that a test may damage."""
    return Path(shutil.copytree(checkpoints.get(SHARDED), tmp_path / "sharded"))


@pytest.fixture
def no_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if the memory of weights is taken."""

    def allocate(plan: WeightPlan, dtype: torch.dtype, device: Device) -> None:
        raise AssertionError("memory was taken before the check was over")

    monkeypatch.setattr(WeightPlan, "allocate", allocate)


def packed(parameter: PackedParameter) -> PackedWeight:
    """The matrix, in the form in which the CPU holds it."""
    assert isinstance(parameter.weight, PackedWeight)
    return parameter.weight


def rows_of(parameter: PackedParameter) -> torch.Tensor:
    """All rows of a packed matrix, looked up one by one."""
    weight = packed(parameter)
    out = torch.empty(weight.shape, dtype=weight.dtype)
    ops.embedding(out, torch.arange(weight.shape[0]), weight)
    return out


def logits_of(model: Model, hidden: torch.Tensor) -> torch.Tensor:
    logits = model.compute_logits(hidden)
    assert logits is not None
    return logits.clone()


def edit(path: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_fused_transposed_and_converted_tensors_land_in_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Chunks of one or two rows, so that tensors arrive in several pieces.
    monkeypatch.setattr(weights, "CHUNK_BYTES", 40)
    q, k = torch.randn(5, 7), torch.randn(3, 7).bfloat16()
    conv, vector = torch.randn(6, 4).half(), torch.randn(9)
    save_file({"q": q, "k": k, "conv": conv, "vector": vector}, tmp_path / SINGLE)
    plan = WeightPlan()
    fused = plan.declare_linear((8, 7), [Part("q", (5, 7)), Part("k", (3, 7), 5)])
    turned = plan.declare_linear((4, 6), [Part("conv", (6, 4), 0, True)])
    plain = plan.declare_vector(9, [Part("vector", (9,))])
    load_weights(tmp_path, plan, torch.float32, CPU, lambda loaded, total: None)
    assert torch.equal(rows_of(fused), torch.cat((q, k.float())))
    assert torch.equal(rows_of(turned), conv.float().t())
    assert torch.equal(plain.tensor, vector)


@pytest.mark.parametrize("chunk_bytes", [1, 500, 2**20])
def test_pairs_of_heads_are_taken_apart_in_whole_heads(
    chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "CHUNK_BYTES", chunk_bytes)
    matrix, bias = torch.randn(24, 7), torch.randn(24)
    save_file({"m": matrix, "b": bias}, tmp_path / SINGLE)
    pairs, second = HeadPairs(8, 6), range(8, 16)
    plan = WeightPlan()
    whole = plan.declare_linear((24, 7), [Part("m", (24, 7), pairs=pairs)])
    shard = plan.declare_vector(8, [Part("b", (24,), outputs=second, pairs=pairs)])
    load_weights(tmp_path, plan, torch.float32, CPU, lambda loaded, total: None)
    order = torch.tensor([0, 2, 4, 1, 3, 5, 6, 7])
    assert torch.equal(rows_of(whole), matrix[torch.cat((order, 8 + order, 16 + order))])
    assert torch.equal(shard.tensor, bias[8 + order])


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantised_tensors_are_rounded_by_whole_rows_however_they_are_stored(
    quantization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "CHUNK_BYTES", 40)
    matrix, head = torch.randn(6, 70), torch.randn(5, 70).half()
    tensors = {"straight": matrix, "turned": matrix.t().contiguous(), "head": head, "table": head.clone()}
    save_file(tensors, tmp_path / SINGLE)
    plan = WeightPlan(forms=FORMS[quantization])
    straight = plan.declare_linear((6, 70), [Part("straight", (6, 70))])
    turned = plan.declare_linear((6, 70), [Part("turned", (70, 6), 0, True)])
    output_head, table = plan.declare_head("head", (5, 70)), plan.declare_rows("table", (5, 70))
    load_weights(tmp_path, plan, torch.bfloat16, CPU, lambda loaded, total: None)
    expected = PackedWeight((6, 70), torch.bfloat16, FORMS[quantization].linear)
    expected.fill(matrix)
    assert torch.equal(packed(straight).data, expected.data)
    assert torch.equal(packed(turned).data, expected.data)
    assert (packed(output_head).form, packed(table).form) == ("int8", "plain")
    assert torch.equal(rows_of(table), head.bfloat16())


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_loading_never_holds_much_more_than_the_packed_weights(tmp_path: Path) -> None:
    shape = (2048, 24 * 1024)
    save_file({"a": torch.zeros(shape, dtype=torch.bfloat16)}, tmp_path / SINGLE)
    plan = WeightPlan()
    parameter = plan.declare_linear(shape, [Part("a", shape)])
    before = memory_kib("VmRSS")
    # Starts VmHWM, the highest VmRSS, anew.
    Path("/proc/self/clear_refs").write_text("5")
    load_weights(tmp_path, plan, torch.bfloat16, CPU, lambda loaded, total: None)
    peak_bytes = (memory_kib("VmHWM") - before) * 1024
    assert peak_bytes <= 1.3 * packed(parameter).data.nbytes


def memory_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_progress_grows_to_the_total(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "CHUNK_BYTES", 64)
    save_file({"a": torch.randn(10, 6), "b": torch.randn(3).bfloat16()}, tmp_path / SINGLE)
    plan = WeightPlan()
    plan.declare_linear((10, 6), [Part("a", (10, 6))])
    plan.declare_vector(3, [Part("b", (3,))])
    seen: list[tuple[int, int]] = []
    load_weights(tmp_path, plan, dtype, CPU, lambda loaded, total: seen.append((loaded, total)))
    assert seen[0] == (0, 246)
    assert seen[-1] == (246, 246)
    assert seen == sorted(seen)
    assert len(seen) > 5


def test_shards_load_as_one_file_does(sharded: Path, tmp_path: Path) -> None:
    assert len(list(sharded.glob("*.safetensors"))) > 2
    merged: Tensors = {}
    for shard in sharded.glob("*.safetensors"):
        merged |= load_file(shard)
    one = tmp_path / "one"
    one.mkdir()
    save_file(merged, one / SINGLE)
    (one / "config.json").write_bytes((sharded / "config.json").read_bytes())
    hidden = torch.randn(2, 48)
    assert torch.equal(logits_of(load(sharded), hidden), logits_of(load(one), hidden))


def test_a_checkpoint_without_the_models_prefix_loads(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    path = Path(shutil.copytree(checkpoints.get(CheckpointSpec("gpt2")), tmp_path / "gpt2"))

    def strip(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)

    hidden = torch.randn(2, 48)
    before = logits_of(load(path), hidden)
    edit(path / SINGLE, strip)
    assert torch.equal(logits_of(load(path), hidden), before)


def test_num_params_counts_each_weight_once(checkpoints: CheckpointCache) -> None:
    from tests.checkpoints import make_reference

    for spec in (CheckpointSpec("llama"), CheckpointSpec("gpt2"), CheckpointSpec("qwen3")):
        expected = sum(parameter.numel() for parameter in make_reference(spec).parameters())
        assert load(checkpoints.get(spec)).num_params == expected


@pytest.mark.usefixtures("no_allocation")
class TestRefusedBeforeMemoryIsTaken:
    def refused(self, path: Path, *words: str) -> None:
        with pytest.raises(ModelLoadError) as raised:
            load(path)
        for word in words:
            assert word in str(raised.value)

    def test_a_missing_shard(self, sharded: Path) -> None:
        shard = sorted(sharded.glob("*.safetensors"))[1]
        shard.unlink()
        self.refused(sharded, shard.name, "missing")

    def test_a_missing_tensor(self, single: Path) -> None:
        name = "model.layers.1.self_attn.k_proj.weight"
        edit(single / SINGLE, lambda tensors: tensors.pop(name))
        self.refused(single, name, SINGLE, "missing")

    def test_many_missing_tensors_in_one_line(self, single: Path) -> None:
        edit(single / SINGLE, lambda tensors: tensors.clear())
        self.refused(single, "missing tensors 'model.embed_tokens.weight'", "more")

    def test_a_tensor_missing_from_the_shard_that_the_index_names(self, sharded: Path) -> None:
        first = sorted(sharded.glob("*.safetensors"))[0]
        name = next(iter(load_file(first)))
        edit(first, lambda tensors: tensors.pop(name))
        self.refused(sharded, name, first.name)

    def test_a_wrong_shape(self, single: Path) -> None:
        name = "model.layers.0.mlp.down_proj.weight"
        edit(single / SINGLE, lambda tensors: tensors.update({name: tensors[name].t().contiguous()}))
        self.refused(single, name, SINGLE, "[80, 48]", "[48, 80]")

    def test_a_config_that_does_not_fit_the_weights(self, single: Path) -> None:
        config = json.loads((single / "config.json").read_text())
        (single / "config.json").write_text(json.dumps({**config, "vocab_size": 10**7}))
        self.refused(single, "model.embed_tokens.weight", "[10000000, 48]")

    def test_a_quantised_tensor(self, single: Path) -> None:
        name = "model.layers.0.mlp.down_proj.weight"
        edit(single / SINGLE, lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}))
        self.refused(single, name, "I8")

    @pytest.mark.parametrize("lost", [1, 100, 10_000])
    def test_a_truncated_file(self, lost: int, single: Path) -> None:
        content = (single / SINGLE).read_bytes()
        (single / SINGLE).write_bytes(content[:-lost])
        self.refused(single, SINGLE, "truncated", "tensor")

    def test_overlapping_ranges(self, single: Path) -> None:
        header, data = split(single / SINGLE)
        names = [name for name in header if name.endswith("k_proj.weight")]
        header[names[1]]["data_offsets"] = header[names[0]]["data_offsets"]
        (single / SINGLE).write_bytes(file_bytes(dict(header), data))
        self.refused(single, SINGLE, names[1], "overlaps")

    @pytest.mark.parametrize(
        "shard",
        ["../outside.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..", "x.bin", "", "a\nb"],
    )
    def test_an_index_that_leads_out_of_the_directory(self, shard: str, sharded: Path) -> None:
        shutil.copy(sorted(sharded.glob("*.safetensors"))[0], sharded.parent / "outside.safetensors")
        index = json.loads((sharded / INDEX).read_text())
        index["weight_map"]["lm_head.weight"] = shard
        (sharded / INDEX).write_text(json.dumps(index))
        self.refused(sharded, INDEX, "plain")

    @pytest.mark.parametrize(
        "index", [{}, {"weight_map": {}}, {"weight_map": {"a": 1}}, {"weight_map": []}, []]
    )
    def test_a_malformed_index(self, index: object, sharded: Path) -> None:
        (sharded / INDEX).write_text(json.dumps(index))
        self.refused(sharded, INDEX)

    def test_an_index_of_too_many_shards(self, sharded: Path) -> None:
        shards = {f"t{i}": f"s{i}.safetensors" for i in range(1025)}
        (sharded / INDEX).write_text(json.dumps({"weight_map": shards}))
        self.refused(sharded, INDEX, "1025")

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
    def test_a_pickle_checkpoint(self, name: str, single: Path) -> None:
        (single / SINGLE).rename(single / name)
        self.refused(single, name, "pickle", "runs code")

    def test_a_directory_without_weights(self, single: Path) -> None:
        (single / SINGLE).unlink()
        self.refused(single, "no weights", SINGLE)

    def test_a_safetensors_file_that_is_a_directory(self, single: Path) -> None:
        (single / SINGLE).unlink()
        (single / SINGLE).mkdir()
        self.refused(single, SINGLE, "cannot be opened")


def test_harmless_extras_are_silent_and_others_are_logged(
    single: Path, caplog: pytest.LogCaptureFixture
) -> None:
    harmless = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "embeddings.position_ids": torch.arange(4),
        "transformer.h.0.attn.bias": torch.ones(1, 1, 4, 4, dtype=torch.uint8),
        "h.0.attn.masked_bias": torch.tensor(-1e4),
    }
    with caplog.at_level(logging.WARNING):
        edit(single / SINGLE, lambda tensors: tensors.update(harmless))
        load(single)
        assert caplog.text == ""
        edit(single / SINGLE, lambda tensors: tensors.update({"odd\nline": torch.ones(1)}))
        load(single)
    assert "tensors_ignored" in caplog.text
    assert r"odd\nline" in caplog.text
    assert "inv_freq" not in caplog.text


@pytest.fixture
def tied(checkpoints: CheckpointCache, tmp_path: Path) -> Path:
    """A checkpoint whose config ties the head to the embedding."""
    source = checkpoints.get(CheckpointSpec("llama", {"tie_word_embeddings": True}))
    return Path(shutil.copytree(source, tmp_path / "tied"))


def test_a_stored_copy_of_a_tied_head_is_ignored(tied: Path, caplog: pytest.LogCaptureFixture) -> None:
    def copy_head(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    num_params = load(tied).num_params
    edit(tied / SINGLE, copy_head)
    with caplog.at_level(logging.WARNING):
        assert load(tied).num_params == num_params
    assert caplog.text == ""


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_a_head_that_differs_from_the_embedding_is_used_though_the_config_ties_them(
    prefix: str, tied: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The difference is in the last of many pieces.
    monkeypatch.setattr(tied_head, "_CHUNK_BYTES", 1000)

    def add_head(tensors: Tensors) -> None:
        head = tensors["model.embed_tokens.weight"].clone()
        head[-1] += 1
        tensors["lm_head.weight"] = head
        tensors[f"{prefix}embed_tokens.weight"] = tensors.pop("model.embed_tokens.weight")

    before = load(tied)
    edit(tied / SINGLE, add_head)
    with caplog.at_level(logging.WARNING):
        after = load(tied)
    assert "head_not_tied" in caplog.text
    hidden = torch.randn(2, 48)
    change = logits_of(after, hidden) - logits_of(before, hidden)
    assert torch.equal(change[:, :-1], torch.zeros(2, 330))
    torch.testing.assert_close(change[:, -1], hidden.sum(-1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.float32, "float32"), (torch.bfloat16, "bfloat16"), (torch.float16, "float16")],
)
def test_a_config_without_dtype_takes_that_of_the_weights(
    dtype: torch.dtype, name: str, single: Path
) -> None:
    def convert(tensors: Tensors) -> None:
        # Norms are often kept in float32; the bulk decides.
        for key, tensor in tensors.items():
            tensors[key] = tensor if "norm" in key else tensor.to(dtype)

    edit(single / SINGLE, convert)
    config = json.loads((single / "config.json").read_text())
    config.pop("dtype", None)
    config.pop("torch_dtype", None)
    (single / "config.json").write_text(json.dumps(config))
    assert read_model_config(single).dtype == name
    assert stored_dtype(single.parent) == ""


def test_float16_weights_run_as_bfloat16(checkpoints: CheckpointCache, single: Path) -> None:
    def halve(tensors: Tensors) -> None:
        for key, tensor in tensors.items():
            tensors[key] = tensor.half()

    edit(single / SINGLE, halve)
    expected = load_file(single / SINGLE)["lm_head.weight"].bfloat16().float()
    hidden = torch.randn(3, 48).bfloat16()
    logits = load(single, torch.bfloat16).compute_logits(hidden)
    torch.testing.assert_close(logits, hidden.float() @ expected.t(), rtol=1e-5, atol=1e-5)


def test_files_are_closed_when_a_check_fails(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Path] = []
    close = SafetensorsFile.close

    def record(file: SafetensorsFile) -> None:
        closed.append(file.path)
        close(file)

    monkeypatch.setattr(SafetensorsFile, "close", record)
    *others, last = sorted(sharded.glob("*.safetensors"))
    last.write_bytes(b"short")
    with pytest.raises(ModelLoadError, match=last.name):
        Checkpoint.open(sharded)
    assert closed == others


def test_no_memory_for_the_weights_is_a_load_error(single: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(plan: WeightPlan, dtype: torch.dtype, device: Device) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(WeightPlan, "allocate", allocate)
    with pytest.raises(ModelLoadError, match="no memory for"):
        load(single)
