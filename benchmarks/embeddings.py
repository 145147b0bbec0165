"""How many sentences per second become vectors, beside other engines in turns on the same cores?

Sentences of 32 to 256 tokens go to LLM.embed, with its processes, and to peers as the sentence-transformers
library calls them: sorted by length, 32 at a time, padded, the mean over what is no padding. A peer is the
BertModel of transformers, or what OpenVINO makes of that (`pip install openvino`), in the same precision; or
llama.cpp (benchmarks/embedding_llama.py says what it needs), which packs sentences instead. Weights are
random, in the shapes of all-MiniLM-L6 and bge-base. Needs transformers.

On a busy machine --cpu-time counts the processors' time instead, with one thread each.

    python -m benchmarks.embeddings [--shape minilm bge-base] [--dtype float32 bfloat16] [--rounds 5]
        [--peer transformers openvino llamacpp] [--threads 2] [--sentences 256] [--cpu-time]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import psutil
import torch

from benchmarks.embedding_llama import LlamaEmbedder, write_gguf
from benchmarks.embedding_shapes import SHAPES, Shape, draw_sentences
from splitserve import LLM

PEER_BATCH = 32

Vectors = npt.NDArray[np.float32]
Embed = Callable[[list[list[int]]], Vectors]
States = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Of token ids and mask, both [B, T]: hidden states [B, T, H]."""


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


def transformers_states(folder: Path, dtype: str, threads: int) -> States:
    """Return what computes hidden states by torch."""
    from transformers import BertModel

    torch.set_num_threads(threads)
    model = BertModel.from_pretrained(folder, dtype=getattr(torch, dtype), add_pooling_layer=False).eval()

    @torch.inference_mode()
    def states(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = model(ids, attention_mask=mask).last_hidden_state
        return made

    return states


def openvino_states(folder: Path, dtype: str, threads: int) -> States:
    """Return what computes hidden states by OpenVINO, of a model that it has compiled."""
    import openvino
    from transformers import BertModel

    model = BertModel.from_pretrained(folder, add_pooling_layer=False, attn_implementation="eager").eval()
    example = {name: torch.ones(2, 8, dtype=torch.long) for name in ("input_ids", "attention_mask")}
    with torch.inference_mode():
        converted = openvino.convert_model(model, example_input=example)
    precision = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
    compiled = openvino.Core().compile_model(converted, "CPU", settings)

    def states(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        made = compiled({"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
        return torch.from_numpy(made[0])

    return states


def llamacpp_embed(folder: Path, dtype: str, threads: int) -> Embed:
    """Return llama.cpp with the model as a GGUF file."""
    from transformers import BertModel

    model = BertModel.from_pretrained(folder, add_pooling_layer=False)
    config = model.config
    sizes = (config.num_hidden_layers, config.hidden_size, config.num_attention_heads)
    shape = Shape(*sizes, config.intermediate_size)
    path = folder / f"{dtype}.gguf"
    write_gguf(path, shape, iter(model.state_dict().items()), {"float32": "F32", "bfloat16": "BF16"}[dtype])
    return LlamaEmbedder(path, threads)


def peer_of(states: States) -> Embed:
    """Return what makes vectors as sentence-transformers does."""

    @torch.inference_mode()
    def embed(sentences: list[list[int]]) -> Vectors:
        order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
        found: dict[int, torch.Tensor] = {}
        for first in range(0, len(order), PEER_BATCH):
            batch = order[first : first + PEER_BATCH]
            width = max(len(sentences[i]) for i in batch)
            ids = torch.zeros(len(batch), width, dtype=torch.long)
            mask = torch.zeros(len(batch), width, dtype=torch.long)
            for row, i in enumerate(batch):
                ids[row, : len(sentences[i])] = torch.tensor(sentences[i])
                mask[row, : len(sentences[i])] = 1
            made = states(ids, mask)
            weights = mask[..., None].to(made.dtype)
            means = (made * weights).sum(dim=1) / weights.sum(dim=1)
            found |= zip(batch, torch.nn.functional.normalize(means.float(), dim=1), strict=True)
        return torch.stack([found[i] for i in range(len(sentences))]).numpy()

    return embed


PEERS: dict[str, Callable[[Path, str, int], Embed]] = {
    "transformers": lambda *args: peer_of(transformers_states(*args)),
    "openvino": lambda *args: peer_of(openvino_states(*args)),
    "llamacpp": llamacpp_embed,
}


def cpu_seconds() -> float:
    """Return the processors' time that this process and its children have taken."""
    own = psutil.Process()
    times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


class Options(NamedTuple):
    """What is measured how often: rounds of so many sentences."""

    peers: list[str]
    rounds: int
    threads: int
    num_sentences: int
    clock: Callable[[], float]


def measure(name: str, dtype: str, options: Options) -> None:
    """Print one line: the fastest of some rounds of each."""
    sentences, threads, clock = draw_sentences(options.num_sentences), options.threads, options.clock
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), SHAPES[name])
        embeds = {peer: PEERS[peer](Path(folder), dtype, threads) for peer in options.peers}
        with LLM(folder, dtype=dtype, num_threads=threads, use_tqdm=False) as llm:

            def ours(sentences: list[list[int]]) -> Vectors:
                outputs = llm.embed(sentences, use_tqdm=False)
                return np.array([each.outputs.embedding for each in outputs], np.float32)

            vectors = ours(sentences)
            cosines = [(vectors * embed(sentences)).sum(axis=1).min() for embed in embeds.values()]
            best = dict.fromkeys(("ours", *embeds), float("inf"))
            for _ in range(options.rounds):
                for which, embed in {"ours": ours, **embeds}.items():
                    started = clock()
                    embed(sentences)
                    best[which] = min(best[which], clock() - started)
    mine = best.pop("ours")
    beside = "".join(f" {len(sentences) / theirs:12.1f} {theirs / mine:6.2f}" for theirs in best.values())
    tokens_per_s = sum(map(len, sentences)) / mine
    print(
        f"{name:9} {dtype:9} {len(sentences) / mine:8.1f} {tokens_per_s:9.0f}{beside} {min(cosines):12.6f}",
        flush=True,
    )


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--peer", nargs="+", choices=PEERS, default=["transformers"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--cpu-time", action="store_true")
    args = parser.parse_args()
    threads, clock = (1, cpu_seconds) if args.cpu_time else (args.threads, time.perf_counter)
    options = Options(args.peer, args.rounds, threads, args.sentences, clock)
    beside = "".join(f" {peer:>12}  ratio" for peer in args.peer)
    print(f"shape     dtype     per second tokens/s{beside} least cosine")
    for name in args.shape:
        for dtype in args.dtype:
            measure(name, dtype, options)


if __name__ == "__main__":
    main()
