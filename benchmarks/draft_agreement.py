"""How often does a draft model foresee what the model samples, with its noise and with noise of its own?

    python -m training.distill --out build/demo_draft
    python -m benchmarks.draft_agreement [--draft DIR] [--conversations N] [--temperature T] [--plot FILE.svg]

The demo model answers conversations that it was not trained on. Then the draft model is asked at each place
of the answers which token it would have drawn: with the seed of the request, as a server does it, and with
another seed, as two samplers that know nothing of each other would. Third, how often rejection sampling would
have accepted a token of the draft model: nothing that keeps the distribution can agree more often, but the
text then depends on the drafts. From these follow the drafts that count in a step, by how many are drafted.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from benchmarks.perplexity import DEMO_MODEL, SEED, Scorer
from splitserve import LLM, SamplingParams
from splitserve.worker.ops.cpu import ops
from training.corpus import conversations
from training.tokenizer import render

MAX_DRAFTS = 8
MAX_ANSWER = 200
OTHER_SEED = 2**40
Bools = npt.NDArray[np.bool_]
COUPLINGS = {
    "the model's noise": "drafts draw with the noise that the model draws with",
    "noise of its own": "drafts draw with other noise",
    "rejection sampling": "the most that any way of drawing can have",
}


class Answer(NamedTuple):
    """What the model sampled behind a prompt, int32, with a seed."""

    prompt: list[int]
    token_ids: list[int]
    seed: int


def answers(model: Path, count: int, temperature: float, *, makes_up: bool) -> list[Answer]:
    """Let the model answer the first turns of conversations, or make up whole conversations."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    mark = "<|im_start|>user\n" if makes_up else "<|im_start|>assistant\n"
    texts = [render(item) for item in conversations(SEED, count)]
    beginnings = [mark if makes_up else text[: text.index(mark) + len(mark)] for text in texts]
    prompts = [tokenizer.encode(text).ids for text in beginnings]
    sampling = [
        SamplingParams(temperature=temperature, max_tokens=MAX_ANSWER, seed=i, ignore_eos=makes_up)
        for i in range(count)
    ]
    with LLM(str(model), num_threads=1, use_tqdm=False) as llm:
        outputs = llm.generate(prompts, sampling)
    return [
        Answer(prompt, list(output.outputs[0].token_ids), i)
        for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
    ]


def drawn(logits: torch.Tensor, first: int, seed: int, temperature: float) -> npt.NDArray[np.int32]:
    """Draw a token from each of the logits [S, V]; that of logits[i] gets position first + i."""
    count = len(logits)
    token_ids = torch.empty(count, dtype=torch.int32)
    ones = torch.ones(count)
    ops.sampling.sample(
        token_ids,
        logits,
        ones * temperature,
        torch.zeros(count, dtype=torch.int32),
        ones,
        torch.zeros(count),
        torch.full((count,), seed),
        torch.arange(first, first + count),
    )
    found: npt.NDArray[np.int32] = token_ids.numpy()
    return found


def compare(model: Scorer, draft: Scorer, answer: Answer, temperature: float) -> dict[str, Bools]:
    """Return of each token of an answer whether the draft model foresees it, by the names of COUPLINGS."""
    first = len(answer.prompt)
    tokens = torch.tensor(answer.prompt + answer.token_ids, dtype=torch.int32)
    wanted, found = (each.logits(tokens)[first - 1 : -1].contiguous() for each in (model, draft))
    token_ids = np.array(answer.token_ids, np.int32)
    again = drawn(wanted, first, answer.seed, temperature)
    assert (again == token_ids).mean() > 0.99, "a token is a function of logits, seed and position"
    shared = drawn(found, first, answer.seed, temperature) == token_ids
    own = drawn(found, first, answer.seed + OTHER_SEED, temperature) == token_ids
    p, q = (torch.softmax(logits / temperature, dim=-1) for logits in (wanted, found))
    chance = torch.minimum(p, q).sum(dim=-1).numpy()
    accepted = np.random.default_rng(answer.seed).random(len(chance)) < chance
    return dict(zip(COUPLINGS, (shared, own, accepted), strict=True))


def counted_per_step(foreseen: Sequence[Bools], num_drafts: int) -> float:
    """Drafts that count in a step, if each drafts so many: those up to the first that is not foreseen."""
    num_steps = num_counted = 0
    for each in foreseen:
        place = 0
        while place < len(each):
            drafts = each[place : place + num_drafts]
            counted = len(drafts) if drafts.all() else int(drafts.argmin())
            num_steps, num_counted, place = num_steps + 1, num_counted + counted, place + counted + 1
    return num_counted / num_steps


def plot(lengths: dict[str, list[float]], title: str, path: Path) -> None:
    """Draw the drafts that count in a step, by how many are drafted."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    for name, each in lengths.items():
        axes.plot(range(1, len(each) + 1), each, marker="o", label=f"{name}: {COUPLINGS[name]}")
    axes.set(title=title, xlabel="drafts per step", ylabel="drafts that count per step")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    # Without a date the file changes only when the figures do.
    figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--draft", type=Path, default=Path("build/demo_draft"), help="with the demo model's tokenizer"
    )
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--make-up", action="store_true", help="let the demo model make up conversations")
    parser.add_argument("--plot", type=Path, help="draw the figure into this .svg; needs the extra bench")
    options = parser.parse_args()
    given = answers(DEMO_MODEL, options.conversations, options.temperature, makes_up=options.make_up)
    model, draft = (Scorer(each, "none") for each in (DEMO_MODEL, options.draft))
    found = [compare(model, draft, answer, options.temperature) for answer in given]
    count = sum(len(answer.token_ids) for answer in given)
    print(f"{count} tokens in {len(given)} answers, temperature {options.temperature}")
    lengths: dict[str, list[float]] = {}
    for name in COUPLINGS:
        foreseen = [each[name] for each in found]
        lengths[name] = [counted_per_step(foreseen, k + 1) for k in range(MAX_DRAFTS)]
        counts = " ".join(f"{length:.2f}" for length in lengths[name])
        print(f"{name:<20} {np.concatenate(foreseen).mean():.1%} foreseen; by drafts per step {counts}")
    shared, own = (lengths[name] for name in list(COUPLINGS)[:2])
    ratios = " ".join(f"{a / b:.2f}" for a, b in zip(shared, own, strict=True))
    print(f"{'ratio of the first two':<20} {ratios}")
    if options.plot:
        plot(lengths, f"{count:,} tokens, temperature {options.temperature:g}", options.plot)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
