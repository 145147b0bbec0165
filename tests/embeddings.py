"""A checkpoint that makes vectors, and the vectors that transformers makes with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file


def make_bare(generator: Path, folder: Path) -> Path:
    """Copy a checkpoint as transformers' AutoModel saves it: a bare architecture, bare names, no head."""
    shutil.copytree(generator, folder)
    tensors = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("model."): each for name, each in tensors.items() if name != "lm_head.weight"}
    save_file(bare, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = [name.replace("ForCausalLM", "Model") for name in config["architectures"]]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def make_embedder(generator: Path, folder: Path, *, normalizes: bool = True) -> Path:
    """Copy a checkpoint as publishers of embedding models have it: with modules.json, its head left out."""
    architectures = json.loads((generator / "config.json").read_text())["architectures"]
    make_bare(generator, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": architectures}))
    names = ["Transformer", "Pooling"] + ["Normalize"] * normalizes
    paths = ["", "1_Pooling", "2_Normalize"]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(zip(names, paths, strict=False))
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    return folder


def reference_vectors(generator: Path, prompts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
    """Return the last hidden states of the last tokens, float32 [n, H], in float32."""
    return np.stack([states[-1] for states in reference_states(generator, prompts)])


def reference_states(generator: Path, prompts: Sequence[Sequence[int]]) -> list[npt.NDArray[np.float32]]:
    """Return the last hidden states of all tokens of each prompt, float32 [tokens, H], in float32."""
    import transformers

    model = transformers.AutoModel.from_pretrained(generator, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [model(torch.tensor([list(prompt)])).last_hidden_state[0].numpy() for prompt in prompts]


def cosines(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the cosine of each pair of rows, [n]."""
    one, other = ours.astype(np.float64), theirs.astype(np.float64)
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.asarray((one * other).sum(axis=1) / lengths)
