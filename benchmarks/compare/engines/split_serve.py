"""How does SplitServe take part? Offline through splitserve.LLM, online through `splitserve serve`."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.adapters import AdapterSpec, kept_adapters
from benchmarks.compare.engines.base import KV_CACHE_BYTES, Engine, Generator, path_missing
from benchmarks.compare.tensors import num_weight_bytes

if TYPE_CHECKING:
    from splitserve import LLM


class SplitServe(Engine):
    """Ours, with weights as they are or quantised at load.

    Args:
        quantization: "" for bf16, "int8", "int4" or "w8a8".
    """

    ours = True
    # Its processes watch one another by the clock; idle, they use no CPU that pausing would save.
    pausable = False

    def __init__(self, quantization: str) -> None:
        self.name = f"splitserve-{quantization}" if quantization else "splitserve"
        self.precision = {"": 16, "int8": 8, "int4": 4, "w8a8": 8}[quantization]
        self._options: dict[str, Any] = {"quantization": quantization} if quantization else {}

    def python(self, root: Path) -> str:
        """Return the interpreter that runs this."""
        return sys.executable

    def missing(self, root: Path, model: Path) -> str:
        """Return whether this version cannot quantise."""
        from splitserve import LLM

        lacking = self._options.keys() - inspect.signature(LLM).parameters.keys()
        return "this version of SplitServe has no option " + ", ".join(lacking) if lacking else ""

    def held_environment(self, root: Path) -> Mapping[str, str]:
        """Return the variable of --isa, which load() reads, too."""
        return {"SPLITSERVE_ISA": "avx2"}

    def server_command(self, root: Path, model: Path, port: int) -> list[str]:
        """Return `splitserve serve` with its defaults but for the size of the KV cache."""
        command = [
            sys.executable,
            "-m",
            "splitserve.engine_core.launcher.cli",
            "serve",
            str(model),
            "--port",
            str(port),
        ]
        command += ["--served-model-name", model.name, f"--kv-cache-memory-bytes={KV_CACHE_BYTES}"]
        return command + [f"--{name}={value}" for name, value in self._options.items()]

    def load(self, model: Path) -> Generator:
        """Start an engine of its own."""
        return _Offline(self._llm(model))

    def _llm(self, model: Path, **more: Any) -> LLM:
        from splitserve import LLM

        # What `splitserve serve` would take of its environment.
        isa = os.environ.get("SPLITSERVE_ISA", "auto")
        options = {"kv_cache_memory_bytes": KV_CACHE_BYTES, "use_tqdm": False, **self._options, **more}
        return LLM(str(model), isa=isa, **options)


class SplitServeFile(SplitServe):
    """Ours with what a peer's set-up makes of a model, and the peer has.

    Args:
        kind: of the file or folder.
        precision: bits of its weights.
        path: returns it for a model's folder.
        peer: name of the virtual environment whose set-up makes it.
        quantization: what to do with it; "" for nothing.
    """

    only_by_name = True

    def __init__(
        self, kind: str, precision: int, path: Callable[[Path], Path], peer: str, quantization: str = ""
    ) -> None:
        super().__init__(quantization)
        self.name, self.plain = f"splitserve-{kind}", self.name
        self.precision = precision
        self._path = path
        self._peer = peer

    def missing(self, root: Path, model: Path) -> str:
        """Return whether it is not there."""
        return path_missing(self._path(model), root, model, self._peer)

    def server_command(self, root: Path, model: Path, port: int) -> list[str]:
        """Return the same command with the file in the place of the folder."""
        command = super().server_command(root, model, port)
        return [str(self._path(model)) if part == str(model) else part for part in command]

    def weight_bytes(self, model: Path) -> int:
        """Return the size of the file, or of the folder's tensors."""
        path = self._path(model)
        return num_weight_bytes(path) if path.is_dir() else path.stat().st_size

    def load(self, model: Path) -> Generator:
        """Start an engine of its own on it."""
        return super().load(self._path(model))


class SplitServeLora(SplitServe):
    """Ours with adapters, of which each prompt has the next.

    Args:
        spec: of the adapters.
    """

    only_by_name = True
    has_server = False

    def __init__(self, spec: AdapterSpec) -> None:
        super().__init__("")
        self.name, self.plain = f"splitserve-lora-{spec.label}", self.name
        self.adapters = spec.targets
        self._spec = spec

    def missing(self, root: Path, model: Path) -> str:
        """Return whether there are no adapters for the model."""
        return path_missing(kept_adapters(model, self._spec)[0], root, model, "vllm")

    def load(self, model: Path) -> Generator:
        """Start an engine that has all of them in memory."""
        lora = {path.name: str(path) for path in kept_adapters(model, self._spec)}
        bounds = {"max_loras": self._spec.number, "max_lora_rank": self._spec.rank}
        return _Offline(self._llm(model, lora=lora, **bounds), list(lora))


class _Offline:
    """Prompts for an LLM, with adapters in turns if there are any."""

    def __init__(self, llm: LLM, adapters: Sequence[str] = ()) -> None:
        self._llm = llm
        self._adapters = adapters

    def generate(self, prompts: Sequence[list[int]], num_new: int) -> list[int]:
        from splitserve import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=num_new, ignore_eos=True)
        names = self._adapters
        lora = [names[i % len(names)] for i in range(len(prompts))] if names else None
        outputs = self._llm.generate([list(prompt) for prompt in prompts], params, use_tqdm=False, lora=lora)
        return [len(output.outputs[0].token_ids) for output in outputs]

    def instructions(self) -> str:
        # What engines compare before they take over each other's requests.
        return self._llm._model.served.info.numerics
