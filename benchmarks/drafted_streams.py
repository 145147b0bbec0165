"""What do drafts gain or cost streams of a kind? Tokens per second through LLM, with and without, in turns.

    python -m benchmarks.drafted_streams KIND [--model DIR] [--streams N ...] [--tokens N] [--rounds N]
                                         [--drafts K] [--threads N] [--quantization Q]

KIND is "repeated" (random tokens three times, greedy: n-grams foresee most), "random" (random tokens at
temperature 1: there is nothing to gain) or "json" (answers of a schema with long keys: grammar and n-grams
draft). The first two take a model of any vocabulary; what "json" takes writes text, such as the demo model
with more layers (benchmarks.enlarged_demo). Both engines are loaded; the one that waits computes nothing.
What they say is compared, token by token.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.perplexity import DEMO_MODEL
from splitserve import LLM, SamplingParams, StructuredOutputs

METHODS = {"repeated": ["ngram"], "random": ["ngram"], "json": ["grammar", "ngram"]}
NUM_PROMPT_TOKENS, REPEATS, NUM_RECORDS = 40, 3, 2
FIELDS: dict[str, dict[str, object]] = {
    "customer_reference_number": {"type": "integer", "minimum": 100000, "maximum": 999999},
    "preferred_delivery_service": {"enum": ["standard", "express", "collection"]},
    "total_amount_including_tax": {"type": "integer", "minimum": 0, "maximum": 99999},
    "number_of_items_in_order": {"type": "integer", "minimum": 1, "maximum": 99},
    "is_wrapped_as_a_present": {"type": "boolean"},
    "additional_remarks_of_buyer": {"type": "string", "maxLength": 24},
}


class Work(NamedTuple):
    """Prompts, one per stream, and how each goes on."""

    prompts: list[str] | list[list[int]]
    sampling: list[SamplingParams]


class Timed(NamedTuple):
    """What the streams of one turn said, and how many tokens they said per second."""

    token_ids: list[list[int]]
    rate: float


def make_work(kind: str, vocab_size: int, num_streams: int, num_tokens: int, seed: int) -> Work:
    """Return what the streams of one round are asked for."""
    seeds = range(seed, seed + num_streams)
    if kind == "json":
        outputs = StructuredOutputs(json=_schema())
        params = [
            SamplingParams(max_tokens=num_tokens, temperature=0.0, seed=each, structured_outputs=outputs)
            for each in seeds
        ]
        return Work([f"Order {each} as JSON:" for each in seeds], params)
    rng = random.Random(seed)
    is_repeated = kind == "repeated"
    prompts = [
        [rng.randrange(vocab_size) for _ in range(NUM_PROMPT_TOKENS)] * (REPEATS if is_repeated else 1)
        for _ in seeds
    ]
    temperature = 0.0 if is_repeated else 1.0
    params = [
        SamplingParams(max_tokens=num_tokens, temperature=temperature, seed=each, ignore_eos=True)
        for each in seeds
    ]
    return Work(prompts, params)


def _schema() -> dict[str, object]:
    record = {
        "type": "object",
        "properties": FIELDS,
        "required": list(FIELDS),
        "additionalProperties": False,
    }
    return {"type": "array", "items": record, "minItems": NUM_RECORDS, "maxItems": NUM_RECORDS}


def run(llm: LLM, work: Work) -> Timed:
    """Let all streams run to their ends."""
    started = time.perf_counter()
    outputs = llm.generate(work.prompts, work.sampling, use_tqdm=False)
    seconds = time.perf_counter() - started
    token_ids = [output.outputs[0].token_ids for output in outputs]
    return Timed(token_ids, sum(map(len, token_ids)) / seconds)


def main() -> None:
    """Parse flags, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("kind", choices=METHODS)
    parser.add_argument("--model", default=str(DEMO_MODEL))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--tokens", type=int, default=96, help="of a stream, at most")
    parser.add_argument("--rounds", type=int, default=5, help="after one that is not counted")
    parser.add_argument("--drafts", type=int, default=8)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--quantization", default="none", help="of the model, as for a server")
    args = parser.parse_args()
    vocab_size = json.loads(Path(args.model, "config.json").read_text())["vocab_size"]
    config = {"method": METHODS[args.kind], "num_speculative_tokens": args.drafts}
    settings = {"num_threads": args.threads, "quantization": args.quantization}
    plain = LLM(args.model, **settings)
    drafting = LLM(args.model, **settings, speculative_config=config)
    print(f"{'streams':>7} {'tokens':>7} {'none tok/s':>11} {'drafts tok/s':>13} {'median of ratios':>17}")
    for num_streams in args.streams:
        rates: dict[bool, list[float]] = {False: [], True: []}
        num_tokens = 0
        for turn in range(args.rounds + 1):
            work = make_work(args.kind, vocab_size, num_streams, args.tokens, 1000 * turn)
            # Who comes first changes from round to round.
            order = (False, True) if turn % 2 else (True, False)
            timed = {drafts: run(drafting if drafts else plain, work) for drafts in order}
            if timed[True].token_ids != timed[False].token_ids:
                raise SystemExit(f"with drafts {num_streams} streams said something else")
            if turn:
                num_tokens += sum(map(len, timed[True].token_ids))
                for drafts in order:
                    rates[drafts].append(timed[drafts].rate)
        none, some = (statistics.median(rates[drafts]) for drafts in (False, True))
        ratio = statistics.median(b / a for a, b in zip(rates[False], rates[True], strict=True))
        mean = num_tokens // args.rounds
        print(f"{num_streams:>7} {mean:>7} {none:>11.0f} {some:>13.0f} {ratio:>17.2f}", flush=True)


if __name__ == "__main__":
    main()
