"""What must an engine tell so that it can be installed, run offline, and served?"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.compare.shapes import Shape
from benchmarks.compare.tensors import num_weight_bytes

# oneDNN's name of the instruction set that engines may be held to.
ONEDNN_AVX2 = "AVX2_VNNI" if " avx_vnni " in Path("/proc/cpuinfo").read_text(encoding="utf-8") else "AVX2"
NUM_CORES = len(os.sched_getaffinity(0))
# The same for every engine that can be told: room for every scenario, and no more than a laptop has.
KV_CACHE_BYTES = 2 << 30
MAX_NUM_SEQS = 64
MAX_MODEL_LEN = 2048


class Generator(Protocol):
    """An engine without HTTP, in its own process."""

    def generate(self, prompts: Sequence[list[int]], num_new: int) -> list[int]:
        """Complete prompts of token ids greedily, all at once, past EOS; return how many tokens each got."""
        ...

    def instructions(self) -> str:
        """Return in the engine's own words which instructions it uses."""
        ...


class Engine(ABC):
    """One row of the comparison.

    Attributes:
        name: the row's label, and the engine's name on the command line.
        ours: whether it is a variant of SplitServe.
        precision: bits of a weight; ratios are taken among engines with the same, and the same `adapters`.
        adapters: which layers the adapters of its requests change, "" if they use none.
        plain: the engine that it is compared with, too: itself without adapters, or with the model as it is.
        venv: name of its virtual environment, "" for the one that runs this.
        needs: one line on what `setup` makes for it, with its size; "" if nothing.
        pausable: its processes may be stopped while others are measured.
        has_server: whether it comes with a server of OpenAI's API.
        only_by_name: it is left out of a run that names no engines.
        health_path: answers 200 once the server can serve.
    """

    name: str
    ours: bool = False
    precision: int = 16
    adapters: str = ""
    plain: str = ""
    venv: str = ""
    needs: str = ""
    pausable: bool = True
    has_server: bool = True
    only_by_name: bool = False
    health_path: str = "/health"

    def folder(self, root: Path) -> Path:
        """Return the folder of its virtual environment; absolute, but not followed where it is a link."""
        return Path(os.path.abspath(root)) / "venvs" / self.venv

    def python(self, root: Path) -> str:
        """Return the interpreter that has the engine."""
        return str(self.folder(root) / "bin" / "python")

    def install(self, root: Path, log: Path) -> None:  # noqa: B027 - ours has nothing to install
        """Make what it needs; again it does nothing.

        Raises:
            subprocess.CalledProcessError: a command failed; the log has its output.
        """

    @abstractmethod
    def missing(self, root: Path, model: Path) -> str:
        """Return in one line what is lacking to run it on a model, "" if nothing is."""

    def environment(self, root: Path) -> Mapping[str, str]:
        """Return what its processes need in their environment."""
        return {}

    def held_environment(self, root: Path) -> Mapping[str, str] | None:
        """Return what holds its processes to AVX2 and AVX-VNNI, None if they cannot be told."""
        return None

    def server_command(self, root: Path, model: Path, port: int) -> list[str]:
        """Return the command that serves a model folder on loopback; only asked of what has a server."""
        raise NotImplementedError(f"{self.name} has no server")

    def request_fields(self, model: Path, num_new: int) -> Mapping[str, object]:
        """Return what a request for so many tokens says beside prompt, max_tokens, temperature and stream."""
        return {"model": model.name, "ignore_eos": True, "stream_options": {"include_usage": True}}

    def prepare(self, root: Path, model: Path, log: Path) -> None:  # noqa: B027 - most read the model as it is
        """Make of a model folder what the engine needs beside it; again it does nothing.

        Raises:
            subprocess.CalledProcessError: a command failed; the log has its output.
        """

    def kv_bytes(self, shape: Shape) -> int:
        """Return how much of the KV cache it has touched, and so made memory of, when it is ready."""
        return 0

    def weight_bytes(self, model: Path) -> int:
        """Return the size of the model's weights as the engine holds them."""
        return num_weight_bytes(model) * self.precision // 16

    @abstractmethod
    def load(self, model: Path) -> Generator:
        """Return the engine with a model; called in a process of the engine's own Python."""


def path_missing(path: Path, root: Path, model: Path, peer: str) -> str:
    """Return in one line what makes a file or folder of a model, "" if it is there.

    Args:
        path: of it.
        root: of the comparison.
        model: folder of the model that it is made of.
        peer: whose set-up makes it.
    """
    how = f"python -m benchmarks.compare setup {root} --models {model.name} --peers {peer}"
    return "" if path.exists() else f"{path} does not exist: {how}"


def pip_missing(engine: Engine, root: Path) -> str:
    """Return what is lacking of an engine that consists of pip packages."""
    installed = (engine.folder(root) / ".recipe").exists()
    return (
        "" if installed else f"not installed: python -m benchmarks.compare setup {root} --peers {engine.venv}"
    )
