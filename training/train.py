"""How is the demo model made? `python -m training.train --out engine_core/demo_model`, from a seed alone."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import LlamaForCausalLM

from training.checkpoint import load_progress, model_config, save_model, save_progress
from training.corpus import conversations
from training.optimizer import Optimizer
from training.packing import ROW_TOKENS, Row, pack, stack
from training.tokenizer import render, save_tokenizer, train_tokenizer, with_marks

TOKENIZER_TEXTS = 20_000
SAVE_EVERY = 100
LOG_EVERY = 20


@dataclass(frozen=True, slots=True)
class Options:
    """What one run does; the same options give the same text, order and learning rates."""

    out: Path
    scratch: Path
    steps: int
    batch: int
    learning_rate: float
    seed: int
    threads: int
    resume: bool
    start: Path | None
    device: str


def parse_options() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("engine_core/demo_model"), help="where the model is written"
    )
    parser.add_argument(
        "--scratch", type=Path, default=Path("build/demo_model"), help="where progress is kept"
    )
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=4, help=f"rows of {ROW_TOKENS} tokens per step")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--resume", action="store_true", help="go on from the progress in --scratch")
    parser.add_argument(
        "--start", type=Path, help="begin with the weights and the tokenizer of this checkpoint"
    )
    parser.add_argument("--device", default="cpu", help="that computes: cpu or cuda")
    return Options(**vars(parser.parse_args()))


def rows(options: Options, tokenizer: Tokenizer) -> list[Row]:
    """Return every row of the run, in order; no conversation is seen twice except by chance."""
    needed = options.steps * options.batch
    # A row holds about five conversations; ten is always enough and islice stops when there are enough rows.
    texts = (render(item) for item in conversations(options.seed, needed * 10))
    return list(islice(pack(texts, tokenizer), needed))


def loss_of(model: LlamaForCausalLM, batch: list[Row]) -> torch.Tensor:
    """Return the weighted cross entropy of the next token; attention stays within a conversation."""
    tokens, weights, segments = (torch.from_numpy(array).to(model.device) for array in stack(batch))
    same = segments[:, :, None] == segments[:, None, :]
    mask = torch.tril(same)[:, None]
    with torch.autocast(model.device.type, torch.bfloat16):
        logits = model(tokens, attention_mask=mask, use_cache=False).logits
    # The first token of a conversation follows from nothing, so the step across a border has no weight.
    keep = weights[:, 1:] * (segments[:, 1:] == segments[:, :-1])
    losses = functional.cross_entropy(
        logits[:, :-1].float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
    )
    return (losses * keep.flatten()).sum() / keep.sum()


def batches(all_rows: list[Row], size: int) -> Iterator[list[Row]]:
    """Yield consecutive batches of rows."""
    for first in range(0, len(all_rows), size):
        yield all_rows[first : first + size]


def train(model: LlamaForCausalLM, all_rows: list[Row], options: Options) -> None:
    """Run the steps that are left, logging as they go and keeping progress in the scratch folder."""
    optimizer = Optimizer(model, options.learning_rate, options.steps)
    progress = options.scratch / "progress.safetensors"
    first = load_progress(progress, model, optimizer) if options.resume and progress.exists() else 0
    began, mean = time.monotonic(), 0.0
    for step, batch in enumerate(batches(all_rows, options.batch)):
        if step < first:
            continue
        loss = loss_of(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(step)
        done = step + 1
        if done == first + 1 or done % LOG_EVERY == 0:
            # Read seldom: a GPU would be waited for.
            mean = loss.item() if done == first + 1 else 0.5 * mean + 0.5 * loss.item()
        if done % LOG_EVERY == 0:
            speed = (done - first) / (time.monotonic() - began)
            num_tokens = options.batch * ROW_TOKENS
            print(
                f"step {done}/{options.steps} loss {mean:.4f} {speed * num_tokens:.0f} tokens/s "
                f"{(options.steps - done) / speed / 60:.1f} min left",
                flush=True,
            )
        if done % SAVE_EVERY == 0:
            save_progress(progress, model, optimizer, done)
            save_model(model, options.scratch)


def make_tokenizer(options: Options) -> Tokenizer:
    """Train the tokenizer, or load the one that goes with the weights that the run begins with."""
    stored = options.scratch / "tokenizer.json"
    if options.resume and stored.exists():
        return Tokenizer.from_file(str(stored))
    if options.start is not None:
        tokenizer = with_marks(Tokenizer.from_file(str(options.start / "tokenizer.json")))
    else:
        tokenizer = train_tokenizer(render(item) for item in conversations(options.seed, TOKENIZER_TEXTS))
    save_tokenizer(tokenizer, options.scratch)
    return tokenizer


def make_model(options: Options) -> LlamaForCausalLM:
    """Return the model in fp32: a new one, or that of the checkpoint to begin with."""
    if options.start is None:
        return LlamaForCausalLM(model_config())
    return LlamaForCausalLM.from_pretrained(options.start, dtype=torch.float32)


def main() -> None:
    """Make the text, the tokenizer and the model, and write all of it to --out."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    for folder in (options.out, options.scratch):
        folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(options)
    model = make_model(options).to(options.device)
    train(model, rows(options, tokenizer), options)
    save_tokenizer(tokenizer, options.out)
    save_model(model, options.out)
    print(f"wrote {options.out}: {sum(p.numel() for p in model.parameters()):,} parameters")


if __name__ == "__main__":
    main()
