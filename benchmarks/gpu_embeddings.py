"""How many sentences per second become vectors on a GPU, beside transformers' BertModel in turns on it?

    python -m benchmarks.gpu_embeddings [--shape minilm,bge-base] [--dtype bfloat16] [--sentences 256]
        [--step-tokens 8192,32768] [--peer-batch 32,128] [--rounds 7] [--device auto] [--json FILE]

Sentences of 32 to 256 tokens, with random weights that both read from one checkpoint: ours by the steps of a
worker, each as large as --step-tokens allows, the peer's as benchmarks.gpu_embeddings_peer describes. Both
begin with lists of token ids and end with vectors in the CPU's memory. The fastest of some rounds counts, of
each the best size of a step or batch; `ratio` is the peer's time over ours. Without the transformers package
the peer is the same model in plain torch.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file

from benchmarks.embedding_shapes import LONGEST, SHAPES, Shape, draw_sentences
from benchmarks.gpu_embeddings_peer import EPS, embed, open_peer
from splitserve.engine_core.ipc.codec import pack_int32, unpack_float32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.device.base import Device
from splitserve.worker.device.select import open_device
from splitserve.worker.worker import Worker

VOCAB_SIZE, MAX_POSITIONS = 30522, 512
Vectors = npt.NDArray[np.float32]
NOTHING = SequenceSampling(seed=0, max_tokens=0)


class Row(NamedTuple):
    """One line of the table: sentences per second, the peer's time over ours, and the least cosine."""

    shape: str
    dtype: str
    peer: str
    ours_per_s: float
    peer_per_s: float
    ratio: float
    tokens_per_s: float
    least_cosine: float


def write_checkpoint(folder: Path, shape: Shape, dtype: torch.dtype) -> None:
    """Write a BertModel with random weights, as transformers saves it."""
    size, inner = shape.hidden_size, shape.intermediate_size
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "intermediate_size": inner,
        "max_position_embeddings": MAX_POSITIONS,
        "vocab_size": VOCAB_SIZE,
        "type_vocab_size": 2,
        "layer_norm_eps": EPS,
        "hidden_act": "gelu",
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    sizes = {"word": VOCAB_SIZE, "position": MAX_POSITIONS, "token_type": 2}
    matrices = {f"embeddings.{name}_embeddings": (rows, size) for name, rows in sizes.items()}
    norms = ["embeddings.LayerNorm"]
    for layer in (f"encoder.layer.{i}" for i in range(shape.num_layers)):
        parts = [*(f"self.{part}" for part in ("query", "key", "value")), "output.dense"]
        matrices |= {f"{layer}.attention.{part}": (size, size) for part in parts}
        matrices |= {f"{layer}.intermediate.dense": (inner, size), f"{layer}.output.dense": (size, inner)}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    torch.manual_seed(0)
    tensors = {f"{name}.weight": torch.randn(size_) * 0.05 for name, size_ in matrices.items()}
    biased = {name: size_[0] for name, size_ in matrices.items() if name.startswith("encoder")}
    tensors |= {f"{name}.bias": torch.randn(rows) * 0.05 for name, rows in biased.items()}
    tensors |= {f"{name}.weight": 1 + torch.randn(size) * 0.05 for name in norms}
    tensors |= {f"{name}.bias": torch.randn(size) * 0.05 for name in norms}
    halves = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    save_file(halves, folder / "model.safetensors", metadata={"format": "pt"})


class Ours:
    """A worker that is told of steps as an engine tells it."""

    def __init__(self, folder: Path, dtype: str, device: Device, num_rows: int, step_tokens: int) -> None:
        config = WorkerConfig(
            model=str(folder), dtype=dtype, max_num_seqs=num_rows, max_num_batched_tokens=step_tokens
        )
        self._worker = Worker(config, device)
        self._worker.load()
        self._worker.init_kv_cache(0)
        self._step_tokens = step_tokens

    def embed(self, sentences: list[list[int]]) -> Vectors:
        """Return the vectors of sentences, float32 [n, H], at length 1."""
        found: dict[int, Vectors] = {}
        freed: list[int] = []
        for rows in self._steps([len(sentence) for sentence in sentences]):
            step = SchedulerOutput(
                step=1,
                rows=pack_int32(rows),
                num_tokens=pack_int32([len(sentences[row]) for row in rows]),
                new_rows=[_new_row(row, sentences[row]) for row in rows],
                freed_rows=pack_int32(freed),
            )
            freed = rows
            found |= {each.key: unpack_float32(each.values) for each in self._worker.execute(step).pooled}
        self._worker.execute(SchedulerOutput(2, b"", b"", freed_rows=pack_int32(freed)))
        vectors = np.array([found[row] for row in range(len(sentences))])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def _steps(self, lengths: list[int]) -> list[list[int]]:
        """Return the rows of each step, in their order, as many as its tokens allow."""
        steps: list[list[int]] = []
        room = 0
        for row, length in enumerate(lengths):
            if length > room:
                steps.append([])
                room = self._step_tokens
            steps[-1].append(row)
            room -= length
        return steps


def _new_row(row: int, sentence: list[int]) -> NewRow:
    return NewRow(row, pack_int32(sentence), len(sentence), 0, b"", NOTHING)


def measure(name: str, dtype: str, device: Device, args: argparse.Namespace) -> Row:
    """Time one shape, in turns, and compare the vectors."""
    sentences, where = draw_sentences(args.sentences), device.torch_device
    runs: dict[str, list[Callable[[], Vectors]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), SHAPES[name], getattr(torch, dtype))
        runs["ours"] = [
            partial(Ours(Path(folder), dtype, device, len(sentences), tokens).embed, sentences)
            for tokens in args.step_tokens
        ]
        peer, states = open_peer(Path(folder), SHAPES[name], getattr(torch, dtype), where)
        runs["peer"] = [partial(embed, states, sentences, size, where) for size in args.peer_batch]
        # The first of each warms up.
        first = {side: [run() for run in each] for side, each in runs.items()}
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(args.rounds):
            for side, each in runs.items():
                for run in each:
                    started = time.perf_counter()
                    run()
                    best[side] = min(best[side], time.perf_counter() - started)
    cosines = (first["ours"][0] * first["peer"][0]).sum(axis=1)
    count, tokens = len(sentences), sum(map(len, sentences))
    mine, theirs = best["ours"], best["peer"]
    per_s = (count / mine, count / theirs, theirs / mine, tokens / mine)
    return Row(name, dtype, peer, *per_s, float(cosines.min()))


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser.add_argument("--shape", default=",".join(SHAPES))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--step-tokens", type=numbers, default=[8192, 32768])
    parser.add_argument("--peer-batch", type=numbers, default=[32, 128])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if min(args.step_tokens) < LONGEST:
        parser.error(f"--step-tokens must be {LONGEST} or more")
    device = open_device(args.device)
    print(f"{device.name}: shape dtype, sentences/s ours and of the peer, ratio, tokens/s, least cosine")
    rows = []
    for name in args.shape.split(","):
        for dtype in args.dtype.split(","):
            rows.append(row := measure(name, dtype, device, args))
            print(
                f"{row.shape:9} {row.dtype:9} {row.ours_per_s:9.1f} {row.peer:12} {row.peer_per_s:9.1f}"
                f" {row.ratio:6.2f} {row.tokens_per_s:11.0f} {row.least_cosine:10.6f}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps([row._asdict() for row in rows]))


if __name__ == "__main__":
    main()
