"""What a model is said to take, against what it takes, and the refusal of one that is too large."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.errors import ModelLoadError
from splitserve.worker.attention.cpu import CpuAttention
from splitserve.worker.config import WorkerConfig
from splitserve.worker.device.base import Device
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.device.workspace import Workspace
from splitserve.worker.layers.weight_plan import WeightPlan
from splitserve.worker.memory.activations import StepSize, activation_bytes
from splitserve.worker.models.placement import Placement
from splitserve.worker.models.registry import ModelUses, declare_model
from splitserve.worker.ops.quantization import KeptForm
from splitserve.worker.weights.loading import load_weights, weigh
from splitserve.worker.worker import Worker
from tests.checkpoints import CheckpointCache, CheckpointSpec
from tests.worker.runner.test_largest_step import MeasuringDevice

# Sizes at which kernels' padding does not hide what is counted.
WIDE = {"hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA = CheckpointSpec("llama", WIDE)


def worker_of(path: Path, device: Device | None = None, **settings: object) -> Worker:
    config = WorkerConfig(model=str(path), num_threads=1, dtype="bfloat16", **settings)  # type: ignore[arg-type]
    return Worker(config, device)


class SmallDevice(CpuDevice):
    """A machine with so much free memory."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self._free_bytes = num_bytes


@pytest.mark.parametrize("quantization", ["none", "int8", "int4", "w8a8"])
@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_weights_take_what_is_said_before(checkpoints: CheckpointCache, name: str, quantization: str) -> None:
    path = checkpoints.get(CheckpointSpec(name, WIDE))
    device = CpuDevice()
    plan = declare_model(
        read_model_config(path), torch.bfloat16, Placement(device, CpuAttention()), quantization
    ).plan
    said = weigh(path, plan, torch.bfloat16, device)
    load_weights(path, plan, torch.bfloat16, device, lambda loaded, total: None)
    assert said == plan.num_bytes > 0


def test_a_worker_says_what_a_model_takes_and_loads_nothing(
    checkpoints: CheckpointCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoints.get(LLAMA)
    loaded = worker_of(path)
    ready = loaded.load()
    monkeypatch.delattr(WeightPlan, "allocate")
    worker = worker_of(path)
    need = worker.memory_need()
    assert (need.device, need.block_bytes) == ("cpu", ready.block_bytes)
    assert need.model.num_params == ready.model.num_params
    assert need.weights_bytes > need.alternatives["int8"] > need.alternatives["int4"] > 0
    assert 0 < need.available_bytes < need.free_bytes
    assert worker.loaded is None


def test_smaller_forms_are_not_named_where_there_are_none(checkpoints: CheckpointCache) -> None:
    path = checkpoints.get(LLAMA)
    assert worker_of(path, quantization="int8").memory_need().alternatives == {}
    exact = WorkerConfig(model=str(path), num_threads=1, dtype="float32")
    assert Worker(exact).memory_need().alternatives == {}


def test_slots_of_adapters_are_counted(checkpoints: CheckpointCache) -> None:
    path = checkpoints.get(LLAMA)
    alone = worker_of(path).memory_need().weights_bytes
    beside = worker_of(path, lora_dir="/somewhere", max_loras=3, max_lora_rank=16).memory_need().weights_bytes
    placement = Placement(CpuDevice(), CpuAttention())
    uses = ModelUses(num_adapters=3, max_rank=16)
    adapters = declare_model(read_model_config(path), torch.bfloat16, placement, uses=uses).adapters
    assert adapters is not None
    assert beside == alone + 3 * adapters.slot_bytes > alone


@pytest.mark.parametrize(
    ("form", "advice"), [("int8", "; try --quantization int8 ("), ("int4", "; try --quantization int4 (")]
)
def test_weights_larger_than_the_memory_are_refused_before_any_is_taken(
    form: str, advice: str, checkpoints: CheckpointCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoints.get(LLAMA)
    need = worker_of(path).memory_need()
    monkeypatch.delattr(WeightPlan, "allocate")
    worker = worker_of(path, SmallDevice(need.alternatives[form]))
    with pytest.raises(ModelLoadError, match=r"^weights need .* are free; try") as refused:
        worker.load()
    assert advice in str(refused.value)


def test_weights_that_fit_in_no_form_are_refused_with_what_each_takes(checkpoints: CheckpointCache) -> None:
    worker = worker_of(checkpoints.get(LLAMA), SmallDevice(1000))
    with pytest.raises(ModelLoadError, match=r"1000 bytes are free, with --quantization int8 .*, with --q"):
        worker.load()


class WritingDevice(CpuDevice):
    """It writes weights of codes out for products of more than 8 rows."""

    def written_bytes(self, shape: tuple[int, int], dtype: torch.dtype, form: KeptForm, num_rows: int) -> int:
        return shape[0] * shape[1] * 2 if form != "plain" and num_rows > 8 else 0


@pytest.mark.parametrize(
    ("num_rows", "largest"),
    [(8, 2 * 352 * 128), (16, 1000 * 128)],
    ids=["gate and up", "the head, of many samples"],
)
def test_the_largest_weight_that_a_step_writes_out_is_counted(
    num_rows: int, largest: int, checkpoints: CheckpointCache
) -> None:
    path = checkpoints.get(CheckpointSpec("llama", {**WIDE, "vocab_size": 1000}))
    settings: dict[str, object] = {"quantization": "int8", "max_num_seqs": num_rows}
    need, beside = (
        worker_of(path, device, **settings).memory_need() for device in (CpuDevice(), WritingDevice())
    )
    assert beside.activation_bytes - need.activation_bytes == 2 * largest
    assert beside.weights_bytes == need.weights_bytes


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "gptoss", "deepseekv2"])
def test_activations_are_estimated_as_the_buffers_of_the_largest_step(
    name: str, checkpoints: CheckpointCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Workspace] = []
    init = Workspace.__init__

    def keep(self: Workspace, *args: object) -> None:
        made.append(self)
        init(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Workspace, "__init__", keep)
    sizes: dict[str, object] = {} if name == "deepseekv2" else {"hidden_size": 192, "intermediate_size": 480}
    path = checkpoints.get(CheckpointSpec(name, sizes))
    worker = worker_of(path, MeasuringDevice(), max_num_batched_tokens=256, max_num_seqs=8, block_size=16)
    worker.load()
    taken = sum(buffer.nbytes for buffer in made[-1]._buffers.values())
    said = activation_bytes(read_model_config(path), StepSize(256, 8, 2))
    assert 0.75 * taken < said < 1.5 * taken
