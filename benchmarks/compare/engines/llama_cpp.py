"""How is llama.cpp built, run offline through libllama, and served?"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.engines.base import MAX_NUM_SEQS, NUM_CORES, ONEDNN_AVX2, Engine, Generator
from benchmarks.compare.gguf_export import gguf_path
from benchmarks.compare.shapes import Shape
from benchmarks.compare.venvs import make_venv, run_logged

VERSION = "0.3.36"
PACKAGE = f"llama-cpp-python=={VERSION}"
PACKAGES = [PACKAGE, "gguf==0.19.0", "safetensors>=0.5,<1"]
CMAKE_FLAGS = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
]
# Kernels for this processor, and those for AVX2 and what else oneDNN's name says.
NATIVE_FLAGS = ["-DGGML_NATIVE=ON"]
AVX2_FLAGS = [
    "-DGGML_NATIVE=OFF",
    "-DGGML_AVX2=ON",
    f"-DGGML_AVX_VNNI={'ON' if 'VNNI' in ONEDNN_AVX2 else 'OFF'}",
]
# Bits of a weight, by the kind of a file.
PRECISIONS = {"bf16": 16, "f16": 16, "q8_0": 8, "q6_k": 6, "q4_0": 4, "q4_k_m": 4}
TOKENS_PER_SEQ = 256
BATCH_TOKENS = 2048


class LlamaCpp(Engine):
    """llama.cpp with one of the types of GGUF files.

    The source is that of llama-cpp-python, whose bindings drive libllama for the offline scenarios; library
    and server are built once, for this machine's processor; its kernels, which alone depend on that, once
    more for AVX2.

    Attributes:
        kind: of its files.
    """

    venv = "llamacpp"
    needs = "llama.cpp built from source (compiler, cmake), 0.5 GB, 6 to 15 minutes; GGUF files beside models"

    def __init__(self, kind: str) -> None:
        self.name = f"llamacpp-{kind}"
        self.precision = PRECISIONS[kind]
        self.only_by_name = kind in ("f16", "q6_k", "q4_k_m")
        self.kind = kind

    def _build(self, root: Path) -> Path:
        return self.folder(root) / "llama.cpp"

    def _held_kernels(self, root: Path) -> Path:
        return self.folder(root) / "llama.cpp-avx2" / "bin" / "libggml-cpu.so.0"

    def install(self, root: Path, log: Path) -> None:
        """Install the bindings without a library of their own, then build library and server."""
        environment = {**os.environ, "CMAKE_ARGS": "-DLLAMA_BUILD=OFF"}
        make_venv(self.folder(root), PACKAGES, log, environment)
        if not (self._build(root) / "bin" / "llama-server").exists():
            self._compile(root, log, self._build(root), NATIVE_FLAGS, "llama-server")
        if platform.machine() == "x86_64" and not self._held_kernels(root).exists():
            self._compile(root, log, self._held_kernels(root).parent.parent, AVX2_FLAGS, "ggml-cpu")

    def _compile(self, root: Path, log: Path, folder: Path, flags: Sequence[str], target: str) -> None:
        source = self._source(root, log)
        run_logged(["cmake", "-S", str(source), "-B", str(folder), *CMAKE_FLAGS, *flags], log)
        run_logged(["cmake", "--build", str(folder), "--target", target, "--parallel", str(NUM_CORES)], log)

    def _source(self, root: Path, log: Path) -> Path:
        folder, name = self.folder(root) / "source", f"llama_cpp_python-{VERSION}*.tar.gz"
        if not list(folder.glob(name)):
            pip = [self.python(root), "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python"]
            run_logged([*pip, "--dest", str(folder), PACKAGE], log)
        [archive] = folder.glob(name)
        shutil.unpack_archive(archive, folder)
        source = folder / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"
        _keep_tile_settings(source / "ggml" / "src" / "ggml-cpu" / "amx" / "mmq.cpp")
        return source

    def prepare(self, root: Path, model: Path, log: Path) -> None:
        """Write the model's GGUF file."""
        if not gguf_path(model, self.kind).exists():
            export = [self.python(root), "-m", "benchmarks.compare.gguf_export"]
            run_logged([*export, str(model), self.kind], log, {**os.environ, **self.environment(root)})

    def missing(self, root: Path, model: Path) -> str:
        """Return whether the server or the model's file is lacking."""
        server = self._build(root) / "bin" / "llama-server"
        lacking = [path for path in (server, gguf_path(model, self.kind)) if not path.exists()]
        how = f"python -m benchmarks.compare setup {root} --peers {self.venv}"
        return f"{lacking[0]} does not exist: {how}" if lacking else ""

    def environment(self, root: Path) -> Mapping[str, str]:
        """Point the bindings at our build."""
        return {"LLAMA_CPP_LIB_PATH": str(self._build(root) / "bin")}

    def held_environment(self, root: Path) -> Mapping[str, str]:
        """Put kernels for AVX2 in the place of those for this processor."""
        return {"LD_PRELOAD": str(self._held_kernels(root))}

    def server_command(self, root: Path, model: Path, port: int) -> list[str]:
        """Return llama-server with a slot per client and no copies of old prompts in memory."""
        command = [
            str(self._build(root) / "bin" / "llama-server"),
            "--model",
            str(gguf_path(model, self.kind)),
        ]
        command += ["--host", "127.0.0.1", "--port", str(port), "--parallel", str(MAX_NUM_SEQS)]
        command += ["--ctx-size", str(MAX_NUM_SEQS * TOKENS_PER_SEQ), "--cache-ram", "0"]
        return [*command, "--threads", str(NUM_CORES), "--threads-batch", str(NUM_CORES)]

    def kv_bytes(self, shape: Shape) -> int:
        """Return all of the cache: it is cleared at start."""
        return MAX_NUM_SEQS * TOKENS_PER_SEQ * shape.kv_bytes_per_token

    def weight_bytes(self, model: Path) -> int:
        """Return the size of the GGUF file; its vocabulary is little beside its weights."""
        return gguf_path(model, self.kind).stat().st_size

    def load(self, model: Path) -> Generator:
        """Load the file into libllama."""
        return _Offline(gguf_path(model, self.kind))


def _keep_tile_settings(file: Path) -> None:
    """Tell the compiler that settings of AMX tiles are read.

    GCC up to 12 takes the load of 64 bytes for one of 8, and leaves out the stores of the others; the process
    then ends at its first product of quantised weights.
    """
    load, barrier = "_tile_loadconfig(&tc);", '__asm__ volatile("" : : "m"(tc) : "memory");'
    text = file.read_text()
    if barrier not in text:
        file.write_text(text.replace(load, f"{barrier} {load}"))


class _Offline:
    """All prompts decode together in one batch, as the server does; each is one of libllama's sequences."""

    def __init__(self, path: Path) -> None:
        import llama_cpp

        self._lib = llama_cpp
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_seq_max, params.n_ctx = MAX_NUM_SEQS, MAX_NUM_SEQS * TOKENS_PER_SEQ
        # One pool for all sequences, so that a single one may be long.
        params.kv_unified = True
        params.n_batch = BATCH_TOKENS
        params.n_threads = params.n_threads_batch = NUM_CORES
        self._context = llama_cpp.llama_init_from_model(model, params)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch: Any = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)

    def generate(self, prompts: Sequence[list[int]], num_new: int) -> list[int]:
        """Complete up to 64 prompts of at most 2,048 tokens each."""
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
        tokens = self._prefill(prompts)
        for step in range(num_new - 1):
            for row, (token, prompt) in enumerate(zip(tokens, prompts, strict=True)):
                self._put(row, token, len(prompt) + step, row, wanted=True)
            tokens = self._decode(len(prompts))
        return [num_new] * len(prompts)

    def instructions(self) -> str:
        said: bytes = self._lib.llama_print_system_info()
        return said.decode().strip(" |\n")

    def _prefill(self, prompts: Sequence[list[int]]) -> list[int]:
        """Compute whole prompts, as many as fit a batch; return the first token of each."""
        tokens: list[int] = []
        used = 0
        for seq, prompt in enumerate(prompts):
            if used + len(prompt) > BATCH_TOKENS:
                tokens += self._decode(used)
                used = 0
            for position, token in enumerate(prompt):
                self._put(used + position, token, position, seq, wanted=position == len(prompt) - 1)
            used += len(prompt)
        return tokens + self._decode(used)

    def _put(self, row: int, token: int, position: int, seq: int, *, wanted: bool) -> None:
        batch = self._batch
        batch.token[row], batch.pos[row], batch.logits[row] = token, position, wanted
        batch.n_seq_id[row], batch.seq_id[row][0] = 1, seq

    def _decode(self, num_rows: int) -> list[int]:
        """Run a batch; return the likeliest token of each row whose logits are wanted."""
        import numpy as np

        self._batch.n_tokens = num_rows
        code = self._lib.llama_decode(self._context, self._batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")
        num_wanted = sum(self._batch.logits[row] for row in range(num_rows))
        pointer = ctypes.cast(self._lib.llama_get_logits(self._context), ctypes.POINTER(ctypes.c_float))
        logits = np.ctypeslib.as_array(pointer, shape=(num_wanted, self._vocab_size))
        return [int(token) for token in logits.argmax(axis=1)]
