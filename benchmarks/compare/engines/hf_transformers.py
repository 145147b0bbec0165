"""How is transformers installed, run offline, and served?"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.engines.base import ONEDNN_AVX2, Engine, Generator, pip_missing
from benchmarks.compare.venvs import TORCH, make_venv

# Its command line imports requests, which its extra does not name.
PACKAGES = ["transformers[serving]==5.19.0", "requests>=2,<3", "accelerate>=1,<2", TORCH]
PAD_ID, NO_EOS_ID = 3, -1


class Transformers(Engine):
    """Hugging Face transformers with torch's attention; its server batches continuously.

    Args:
        dtype: "bfloat16", or "float32", in which torch is quicker where a processor has no products of bf16.
            Its figures stand beside those of 16 bits all the same: the checkpoint's weights have these.
    """

    venv = "transformers"
    needs = "transformers and torch from wheels, 1.2 GB"

    def __init__(self, dtype: str) -> None:
        self.name = "transformers" if dtype == "bfloat16" else "transformers-f32"
        self.only_by_name = dtype != "bfloat16"
        self._dtype = dtype

    def install(self, root: Path, log: Path) -> None:
        """Install the wheels."""
        make_venv(self.folder(root), PACKAGES, log, os.environ)

    def missing(self, root: Path, model: Path) -> str:
        """Return whether it is not installed."""
        return pip_missing(self, root)

    def environment(self, root: Path) -> Mapping[str, str]:
        """Keep it from asking the hub about a folder on this disk."""
        return {"HF_HUB_OFFLINE": "1"}

    def held_environment(self, root: Path) -> Mapping[str, str]:
        """Tell torch, and the two libraries that multiply for it."""
        return {
            "ATEN_CPU_CAPABILITY": "avx2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
            "ONEDNN_MAX_CPU_ISA": ONEDNN_AVX2,
        }

    def server_command(self, root: Path, model: Path, port: int) -> list[str]:
        """Return `transformers serve`."""
        command = [str(self.folder(root) / "bin" / "transformers"), "serve", str(model)]
        command += ["--continuous-batching", "--cb-num-blocks", "256", "--cb-max-batch-tokens", "2048"]
        command += ["--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]
        return [*command, "--dtype", self._dtype, "--log-level", "error"]

    def request_fields(self, model: Path, num_new: int) -> Mapping[str, object]:
        """It knows the model by its path, and how to go on after EOS by generation settings only."""
        settings = {
            "max_new_tokens": num_new,
            "do_sample": False,
            "eos_token_id": NO_EOS_ID,
            "pad_token_id": PAD_ID,
        }
        return {"model": str(model), "generation_config": json.dumps(settings)}

    def weight_bytes(self, model: Path) -> int:
        """Return twice the size of the file for float32."""
        return super().weight_bytes(model) * (2 if self._dtype == "float32" else 1)

    def load(self, model: Path) -> Generator:
        """Load the model."""
        import torch
        from transformers import AutoModelForCausalLM

        dtype = getattr(torch, self._dtype)
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="sdpa")
        return _Offline(loaded.eval())


class _Offline:
    def __init__(self, model: Any) -> None:
        self._model = model

    def generate(self, prompts: Sequence[list[int]], num_new: int) -> list[int]:
        """Complete prompts of one length; there is nothing to pad then."""
        import torch

        inputs = torch.tensor(prompts)
        with torch.inference_mode():
            outputs = self._model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                min_new_tokens=num_new,
                max_new_tokens=num_new,
                do_sample=False,
                pad_token_id=PAD_ID,
            )
        return [outputs.shape[1] - inputs.shape[1]] * len(prompts)

    def instructions(self) -> str:
        import torch

        return f"torch, {torch.backends.cpu.get_cpu_capability()}"
