"""Mutated matrices of every format, and mutated adapters, on the code that loads them.

They are loaded, or refused by the name of a file. A case is one file: a byte that says which one (the index
in the list of places), then its contents; what belongs to it is sound.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from random import Random

import gguf
import numpy as np
import torch
from safetensors.torch import save

from splitserve.engine_core.checkpoint.config.field_files import read_fields
from splitserve.engine_core.checkpoint.quantization.reader import read_quantization
from splitserve.engine_core.errors import ConfigError, ModelLoadError
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.device.workspace import Workspace
from splitserve.worker.layers.adapters.adapted_layer import AdaptedShape
from splitserve.worker.layers.adapters.adapters import AdapterLimits, Adapters
from splitserve.worker.layers.parameter import Part
from splitserve.worker.layers.weight_plan import WeightPlan
from splitserve.worker.lora.reading import AdapterReader
from splitserve.worker.weights.loading import load_weights
from tests.engine_core.checkpoint.gguf_writing import Tensor, file_bytes
from tests.fuzz.case import Case
from tests.fuzz.folders import make_folder
from tests.fuzz.mutation.formats import Mutate, mutate_json, mutate_raw, mutate_safetensors
from tests.fuzz.targets.model_files import check_refusal
from tests.worker.weights.quantized import CASES

SHAPE = (16, 96)
CPU = CpuDevice()
BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")


class Place(ABC):
    """A folder with what one reader takes, of which one file is mutated.

    Args:
        name: of that file.
        sound: its contents.
        mutate: changes them.
        others: the other files.
    """

    def __init__(self, name: str, sound: bytes, mutate: Mutate, others: dict[str, bytes]) -> None:
        self.name = name
        self.sound = sound
        self.mutate = mutate
        self.others = others

    @abstractmethod
    def read(self, folder: Path) -> None:
        """Load it."""


class QuantizedMatrix(Place):
    """A matrix of a checkpoint in one of the formats of safetensors; its config stands beside it."""

    def read(self, folder: Path) -> None:
        quantization = read_quantization(folder, read_fields(folder / "config.json"))
        _load(folder, WeightPlan(quantization=quantization), "m.weight", SHAPE)


class Mxfp4Experts(Place):
    """The codes and scales of an expert's matrix."""

    def read(self, folder: Path) -> None:
        plan = WeightPlan()
        plan.declare_experts(1, SHAPE, [Part("m", SHAPE, is_mxfp4=True)], "mxfp4")
        load_weights(folder, plan, torch.bfloat16, CPU, lambda loaded, total: None)


class GgufMatrix(Place):
    """A matrix of a GGUF file."""

    shape = (8, 512)

    def read(self, folder: Path) -> None:
        _load(folder / self.name, WeightPlan(), "model.layers.0.mlp.up_proj.weight", self.shape)


class TinyAdapter(Place):
    """An adapter of a model with one layer."""

    def read(self, folder: Path) -> None:
        adapters = Adapters(AdapterLimits(1, 16), CPU.ops, Workspace(torch.bfloat16, torch.device("cpu")))
        adapters.declare("model.layers.0.mlp.up_proj", AdaptedShape(SHAPE[1], SHAPE[0]))
        AdapterReader(adapters, torch.bfloat16).read(folder)


def _load(path: Path, plan: WeightPlan, name: str, shape: tuple[int, int]) -> None:
    plan.declare_linear(shape, [Part(name, shape)], may_change_order=True)
    load_weights(path, plan, torch.bfloat16, CPU, lambda loaded, total: None)


def quantized_places() -> list[Place]:
    """Weights and config of every format of safetensors."""
    places: list[Place] = []
    for case in CASES.values():
        made = case.make(*SHAPE, torch.Generator().manual_seed(1))
        weights = save({f"m.{name}": tensor.contiguous() for name, tensor in made.tensors.items()})
        config = json.dumps({"quantization_config": case.config}).encode()
        files = {"model.safetensors": weights, "config.json": config}
        places.append(QuantizedMatrix("model.safetensors", weights, mutate_safetensors, files))
        places.append(QuantizedMatrix("config.json", config, mutate_json, files))
    return places


def gguf_places() -> list[Place]:
    """A matrix of every type of blocks."""
    places: list[Place] = []
    rows, columns = GgufMatrix.shape
    for kind in BLOCKS:
        number = gguf.GGMLQuantizationType[kind]
        elements, num_bytes = gguf.GGML_QUANT_SIZES[number]
        # Bytes of zeros are sound blocks of every type.
        data = np.zeros(rows * columns // elements * num_bytes, np.uint8).tobytes()
        tensor = Tensor(int(number), [columns, rows], data)
        sound = file_bytes({"general.architecture": "llama"}, {"blk.0.ffn_up.weight": tensor})
        places.append(GgufMatrix("model.gguf", sound, mutate_raw, {}))
    return places


def other_places() -> list[Place]:
    """Experts in MXFP4; config and weights of an adapter."""
    codes = torch.zeros(SHAPE[0], SHAPE[1] // 32, 16, dtype=torch.uint8)
    experts = save({"m_blocks": codes, "m_scales": torch.full(codes.shape[:2], 120, dtype=torch.uint8)})
    start = "base_model.model.model.layers.0.mlp.up_proj.lora_"
    weights = save(
        {f"{start}A.weight": torch.zeros(4, SHAPE[1]), f"{start}B.weight": torch.zeros(SHAPE[0], 4)}
    )
    config = json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "rank_pattern": {}}).encode()
    files = {"adapter_model.safetensors": weights, "adapter_config.json": config}
    return [
        Mxfp4Experts("model.safetensors", experts, mutate_safetensors, {}),
        TinyAdapter("adapter_model.safetensors", weights, mutate_safetensors, files),
        TinyAdapter("adapter_config.json", config, mutate_json, files),
    ]


class WeightFiles:
    """See the module."""

    what = "files"

    def __init__(self) -> None:
        self._places = [*quantized_places(), *gguf_places(), *other_places()]
        self._folder = make_folder()
        self._folders = [Path(self._folder.name) / str(number) for number in range(len(self._places))]
        for folder, place in zip(self._folders, self._places, strict=True):
            folder.mkdir()
            for name, data in {**place.others, place.name: place.sound}.items():
                (folder / name).write_bytes(data)
            # What is not changed is loaded.
            place.read(folder)

    def draw(self, rng: Random) -> Case:
        number = int(rng.random() * len(self._places))
        return [self.mutate(rng, bytes((number,)) + self._places[number].sound)]

    def mutate(self, rng: Random, piece: bytes) -> bytes:
        number = piece[0] % len(self._places) if piece else 0
        place = self._places[number]
        return bytes((number,)) + place.mutate(rng, piece[1:], [place.sound])

    def run(self, case: Case) -> int:
        for piece in case:
            number = piece[0] % len(self._places) if piece else 0
            folder, place = self._folders[number], self._places[number]
            (folder / place.name).write_bytes(piece[1:])
            try:
                place.read(folder)
            except (ModelLoadError, ConfigError) as error:
                check_refusal(error, folder)
        return len(case)

    def finish(self) -> str:
        return ""

    def close(self) -> None:
        self._folder.cleanup()
