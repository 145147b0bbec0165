"""How many sentences per second become vectors, beside transformers in turns on the same cores?

Sentences of 32 to 256 tokens go to LLM.embed, with its processes, and to transformers' BertModel as the
sentence-transformers library calls it: sorted by length, 32 at a time, padded, the mean over what is no
padding. Weights are random, in the shapes of all-MiniLM-L6 and bge-base. Needs transformers.

On a busy machine --cpu-time counts the processors' time instead, with one thread each.

    python -m benchmarks.embeddings [--shape minilm bge-base] [--dtype float32 bfloat16] [--rounds 5]
        [--threads 2] [--sentences 256] [--cpu-time]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import torch

from benchmarks.embedding_shapes import SHAPES, Shape, draw_sentences
from splitserve import LLM

PEER_BATCH = 32


Vectors = npt.NDArray[np.float32]


def write_model(folder: Path, shape: Shape) -> None:
    """Write a BertModel with random weights, and a tokenizer that nobody asks."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        intermediate_size=shape.intermediate_size,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(
        '{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}'
    )


def peer_of(folder: Path, dtype: torch.dtype) -> Callable[[list[list[int]]], Vectors]:
    """Return what makes vectors as sentence-transformers does."""
    from transformers import BertModel

    model = BertModel.from_pretrained(folder, dtype=dtype, add_pooling_layer=False).eval()

    @torch.inference_mode()
    def embed(sentences: list[list[int]]) -> Vectors:
        order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
        found = torch.empty(len(sentences), model.config.hidden_size)
        for first in range(0, len(order), PEER_BATCH):
            batch = order[first : first + PEER_BATCH]
            width = max(len(sentences[i]) for i in batch)
            ids = torch.zeros(len(batch), width, dtype=torch.long)
            mask = torch.zeros(len(batch), width, dtype=torch.long)
            for row, i in enumerate(batch):
                ids[row, : len(sentences[i])] = torch.tensor(sentences[i])
                mask[row, : len(sentences[i])] = 1
            states = model(ids, attention_mask=mask).last_hidden_state
            weights = mask[..., None].to(states.dtype)
            means = (states * weights).sum(dim=1) / weights.sum(dim=1)
            found[batch] = torch.nn.functional.normalize(means.float(), dim=1)
        return found.numpy()

    return embed


def cpu_seconds() -> float:
    """Return the processors' time that this process and its children have taken."""
    own = psutil.Process()
    times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def measure(name: str, dtype: str, rounds: int, threads: int, count: int, clock: Callable[[], float]) -> None:
    """Print one line: the fastest of some rounds of each."""
    sentences = draw_sentences(count)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), SHAPES[name])
        peer = peer_of(Path(folder), getattr(torch, dtype))
        with LLM(folder, dtype=dtype, num_threads=threads, use_tqdm=False) as llm:

            def ours(sentences: list[list[int]]) -> Vectors:
                outputs = llm.embed(sentences, use_tqdm=False)
                return np.array([each.outputs.embedding for each in outputs], np.float32)

            cosines = (ours(sentences) * peer(sentences)).sum(axis=1)
            times: dict[str, list[float]] = {"ours": [], "peer": []}
            for _ in range(rounds):
                for which, embed in (("ours", ours), ("peer", peer)):
                    started = clock()
                    embed(sentences)
                    times[which].append(clock() - started)
    num_tokens = sum(map(len, sentences))
    mine, theirs = min(times["ours"]), min(times["peer"])
    print(
        f"{name:9} {dtype:9} {count / mine:8.1f} {count / theirs:12.1f} {theirs / mine:6.2f} "
        f"{num_tokens / mine:9.0f} {cosines.min():10.6f}",
        flush=True,
    )


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--cpu-time", action="store_true")
    args = parser.parse_args()
    threads, clock = (1, cpu_seconds) if args.cpu_time else (args.threads, time.perf_counter)
    torch.set_num_threads(threads)
    print("shape     dtype     per second  transformers  ratio  tokens/s  least cosine")
    for name in args.shape:
        for dtype in args.dtype:
            measure(name, dtype, args.rounds, threads, args.sentences, clock)


if __name__ == "__main__":
    main()
