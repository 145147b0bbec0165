"""What does a grammar cost the batch it runs in?

Usage: python -m benchmarks.structured MODEL [--streams 32] [--tokens 96] [--rounds 5]

Runs the same number of sequences and tokens in turns: without a grammar, with one JSON schema for all, with
a schema of its own for each that was not seen before. Prints output tokens per second and the ratio to
the first, median and best of the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator

from benchmarks.record_schema import list_of_records
from splitserve import LLM, SamplingParams


def schema_grammar(name: str) -> str:
    """A grammar of an array of records that goes on for as long as the model writes."""
    from llguidance import LLMatcher

    schema = list_of_records(name, 10_000)
    return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})


def measure(llm: LLM, grammars: list[str | None], num_tokens: int) -> float:
    """Return output tokens per second of one sequence per grammar."""
    params = [
        SamplingParams(max_tokens=num_tokens, ignore_eos=True, seed=i, grammar=grammar)
        for i, grammar in enumerate(grammars)
    ]
    prompts = [f"List {i} of records as JSON:" for i in range(len(grammars))]
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    return sum(len(output.outputs[0].token_ids) for output in outputs) / seconds


def rounds(llm: LLM, num_streams: int, num_tokens: int) -> Iterator[dict[str, float]]:
    """Measure all kinds, in an order that turns."""
    shared = schema_grammar("shared")
    names = (f"n{i}" for i in itertools.count())
    kinds = ["none", "shared", "different"]
    while True:
        found = {}
        for kind in kinds:
            grammars: dict[str, list[str | None]] = {
                "none": [None] * num_streams,
                "shared": [shared] * num_streams,
                "different": [schema_grammar(next(names)) for _ in range(num_streams)],
            }
            found[kind] = measure(llm, grammars[kind], num_tokens)
        yield found
        kinds = [*kinds[1:], kinds[0]]


def main() -> None:
    """Parse flags, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    llm = LLM(args.model)
    measure(llm, [None] * args.streams, args.tokens)
    results = list(itertools.islice(rounds(llm, args.streams, args.tokens), args.rounds))
    print(f"{'grammar':<10} {'median tok/s':>13} {'best':>8} {'median ratio':>13} {'best ratio':>11}")
    for kind in results[0]:
        rates = [result[kind] for result in results]
        ratios = [result[kind] / result["none"] for result in results]
        best = max(rates) / max(result["none"] for result in results)
        print(
            f"{kind:<10} {statistics.median(rates):>13.1f} {max(rates):>8.1f} "
            f"{statistics.median(ratios):>13.3f} {best:>11.3f}"
        )


if __name__ == "__main__":
    main()
