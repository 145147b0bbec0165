"""Which adapters are compared? Random numbers in a checkpoint's linear layers, as PEFT writes them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from benchmarks.compare.tensors import shapes_of

LINEAR_SUFFIX = "_proj"


class AdapterSpec(NamedTuple):
    """What the adapters are like.

    Attributes:
        number: of them.
        rank: of each layer.
        targets: last names of the layers, separated by commas; "all" for all linear layers.
    """

    number: int
    rank: int
    targets: str = "all"

    @property
    def label(self) -> str:
        """The targets without commas, as part of names."""
        return self.targets.replace(",", "-")

    def names_in(self, layers: list[str]) -> list[str]:
        """Return the last names of those layers that adapters change, each once."""
        last = dict.fromkeys(layer.rpartition(".")[2] for layer in layers)
        wanted = [name for name in last if name.endswith(LINEAR_SUFFIX)]
        return wanted if self.targets == "all" else [name for name in last if name in self.targets.split(",")]


def write_adapters(model: Path, spec: AdapterSpec, folder: Path) -> list[Path]:
    """Write adapters for a checkpoint into folders named 0, 1, ...; returns these.

    Raises:
        ValueError: the checkpoint has none of the layers.
    """
    import torch
    from safetensors.torch import save_file

    layers = {
        name.removesuffix(".weight"): shape for name, shape in shapes_of(model).items() if len(shape) == 2
    }
    names = spec.names_in(list(layers))
    if not names:
        raise ValueError(f"{model} has no layers named {spec.targets}")
    config = {"peft_type": "LORA", "r": spec.rank, "lora_alpha": 2 * spec.rank, "target_modules": names}
    written = []
    for number in range(spec.number):
        tensors = {}
        for layer, (num_outputs, num_inputs) in layers.items():
            if layer.rpartition(".")[2] in names:
                start = f"base_model.model.{layer}.lora_"
                tensors[f"{start}A.weight"] = torch.randn(spec.rank, num_inputs) * 0.02
                tensors[f"{start}B.weight"] = torch.randn(num_outputs, spec.rank) * 0.02
        path = folder / str(number)
        path.mkdir(parents=True)
        save_file(tensors, path / "adapter_model.safetensors")
        (path / "adapter_config.json").write_text(json.dumps(config))
        written.append(path)
    return written


def kept_adapters(model: Path, spec: AdapterSpec) -> list[Path]:
    """Return where the comparison keeps a model's adapters: beside the folder of its models."""
    folder = model.parent.parent / "adapters" / model.name / spec.label
    return [folder / str(number) for number in range(spec.number)]


def keep_adapters(model: Path, spec: AdapterSpec) -> None:
    """Write them there unless they are there; another process sees all of them or none."""
    kept = kept_adapters(model, spec)[0].parent
    if kept.exists():
        return
    partly = kept.with_name(f"{kept.name}.{os.getpid()}")
    shutil.rmtree(partly, ignore_errors=True)
    write_adapters(model, spec, partly)
    partly.rename(kept)
