"""What do recent answers gain where answers resemble each other? Processor time and steps, in turns.

    python -m benchmarks.repeated_answers [--model DIR] [--questions N] [--rounds N] [--temperature T]
                                          [--tokens N] [--drafts K]

As agents do, the same questions come again and again, one after the other; the answers differ a little, as
each has a seed of its own. Every round is run without drafts, with n-grams and with suffixes, and all have to
say the same. The first round, in which nothing was answered before, is told apart.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from benchmarks.draft_model import Server, Turn
from benchmarks.perplexity import DEMO_MODEL, SEED
from training.corpus import conversations
from training.tokenizer import render

METHODS = ("", "ngram", "suffix")
MARK = "<|im_start|>assistant\n"


class Asked(NamedTuple):
    """One round of all questions."""

    num_tokens: int
    num_steps: int
    num_drafts: int
    num_counted: int
    seconds: float


def long_answers(count: int, least: int) -> list[list[int]]:
    """Return conversations up to the first answer, of those whose answers have so many tokens at least."""
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    found: list[list[int]] = []
    for item in conversations(SEED, 100 * count):
        text = render(item)
        begin = text.index(MARK) + len(MARK)
        answer = text[begin:].split("<|im_end|>")[0]
        if len(tokenizer.encode(answer).ids) >= least:
            found.append(tokenizer.encode(text[:begin]).ids)
        if len(found) == count:
            break
    return found


def summed(turns: list[Turn]) -> Asked:
    num_tokens = [sum(map(len, turn.tokens)) for turn in turns]
    return Asked(
        sum(num_tokens),
        sum(turn.num_steps for turn in turns),
        sum(turn.num_drafts for turn in turns),
        sum(turn.num_counted for turn in turns),
        sum(turn.ms_per_token * each / 1000 for turn, each in zip(turns, num_tokens, strict=True)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=DEMO_MODEL)
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--drafts", type=int, default=8)
    options = parser.parse_args()
    options.streams, options.threads, options.draft = 1, 1, None
    prompts = long_answers(options.questions, 40)
    servers = {method: Server(options, method) for method in METHODS}
    rounds: dict[str, list[Asked]] = {method: [] for method in METHODS}
    for i in range(options.rounds):
        turns: dict[str, list[Turn]] = {method: [] for method in METHODS}
        for k, prompt in enumerate(prompts):
            for method, server in servers.items():
                turns[method].append(server.run(1000 * i + k, [prompt]))
            assert len({str(each[-1].tokens) for each in turns.values()}) == 1, "drafts change no token"
        for method in METHODS:
            rounds[method].append(summed(turns[method]))
    for method, asked in rounds.items():
        for name, some in (("first round", asked[:1]), ("later rounds", asked[1:])):
            total = Asked(*map(sum, zip(*some, strict=True)))
            ms = 1000 * total.seconds / total.num_tokens
            print(
                f"{method or 'none':<7} {name:<12} {ms:.3f} ms per token, "
                f"{total.num_steps} steps for {total.num_tokens} tokens, "
                f"{total.num_counted} of {total.num_drafts} drafts counted"
            )
    for method in METHODS[1:]:
        ratios = [a.seconds / b.seconds for a, b in zip(rounds[""][1:], rounds[method][1:], strict=True)]
        print(f"{method:<7} {statistics.median(ratios):.2f} times the speed of none in later rounds")


if __name__ == "__main__":
    main()
