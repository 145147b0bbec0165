"""What several ranks on this machine cost and gain: time per decode step and per prompt, beside one rank.

python -m benchmarks.parallel [--model DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.offline.llm import LLM

NUM_TOKENS = 48
ROUNDS = 3


class Shape(NamedTuple):
    """Ranks of each stage, and stages."""

    num_ranks: int
    num_stages: int


SHAPES = (Shape(1, 1), Shape(2, 1), Shape(1, 2))


def main(argv: Sequence[str] | None = None) -> None:
    """Print one line per shape and batch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="", metavar="DIR", help="default: the demo model")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], metavar="N")
    parser.add_argument("--prompt", type=int, default=64, metavar="TOKENS")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    print("ranks  stages  requests  prompts ms  ms per token of a request")
    rows = [row for shape in SHAPES for row in measure(shape, options)]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def measure(shape: Shape, options: argparse.Namespace) -> list[dict[str, float]]:
    """Load the model over so many ranks and time each batch size; the best of three rounds counts."""
    rows = []
    with LLM(
        options.model,
        tensor_parallel_size=shape.num_ranks,
        pipeline_parallel_size=shape.num_stages,
        enable_prefix_caching=False,
        num_blocks=2000,
        use_tqdm=False,
    ) as llm:
        for count in options.batches:
            first_s = min(generate_s(llm, count, options.prompt, 1) for _ in range(ROUNDS))
            all_s = min(generate_s(llm, count, options.prompt, 1 + NUM_TOKENS) for _ in range(ROUNDS))
            prompt_ms, step_ms = 1000 * first_s, 1000 * (all_s - first_s) / NUM_TOKENS
            print(f"{shape.num_ranks:5}  {shape.num_stages:6}  {count:8}  {prompt_ms:9.1f}  {step_ms:9.2f}")
            rows.append({**shape._asdict(), "requests": count, "prompt_ms": prompt_ms, "decode_ms": step_ms})
    return rows


def generate_s(llm: LLM, count: int, num_prompt: int, num_tokens: int) -> float:
    """Return the seconds for so many greedy completions."""
    prompts = [[(7 * i + j) % 200 + 10 for j in range(num_prompt)] for i in range(count)]
    sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    begun = time.perf_counter()
    llm.generate(prompts, sampling, use_tqdm=False)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
