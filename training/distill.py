"""How is a small model made that foresees the demo model's tokens? `python -m training.distill`.

It learns, on the text of the demo model, not what is written there but what the demo model would say at each
place: the whole distribution, so that at any temperature it says the same as often as it can.
"""

from __future__ import annotations

import argparse
import shutil
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from training.checkpoint import model_config, save_model
from training.corpus import conversations
from training.optimizer import Optimizer
from training.packing import Row, pack, stack
from training.tokenizer import render
from training.train import batches

LOG_EVERY = 20
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class Options:
    """What one run does; the same options give the same text, order and learning rates."""

    teacher: Path
    out: Path
    hidden_size: int
    layers: int
    steps: int
    batch: int
    learning_rate: float
    seed: int
    threads: int


def parse_options() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teacher", type=Path, default=Path("engine_core/demo_model"))
    parser.add_argument("--out", type=Path, default=Path("build/demo_draft"))
    parser.add_argument("--hidden-size", type=int, default=128, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=4, help="rows per step")
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--threads", type=int, default=2)
    return Options(**vars(parser.parse_args()))


def student_config(options: Options) -> LlamaConfig:
    """Return the teacher's architecture, narrower and with fewer layers."""
    config = model_config()
    width = options.hidden_size
    config.update(
        {
            "hidden_size": width,
            "intermediate_size": 11 * width // 4,
            "num_hidden_layers": options.layers,
            "num_attention_heads": width // config.head_dim,
            "num_key_value_heads": width // config.head_dim // 2,
        }
    )
    return config


def loss_of(student: LlamaForCausalLM, teacher: LlamaForCausalLM, batch: list[Row]) -> torch.Tensor:
    """Return how far the student's distribution is from the teacher's, weighted as in training.train."""
    tokens, weights, segments = (torch.from_numpy(array) for array in stack(batch))
    mask = torch.tril(segments[:, :, None] == segments[:, None, :])[:, None]
    # Of a token that has no successor in its conversation nothing is asked.
    keep = (weights[:, 1:] * (segments[:, 1:] == segments[:, :-1])).flatten()
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            wanted = teacher(tokens, attention_mask=mask, use_cache=False).logits
        found = student(tokens, attention_mask=mask, use_cache=False).logits
    log_wanted, log_found = (
        functional.log_softmax(logits[:, :-1].float().flatten(0, 1), dim=-1) for logits in (wanted, found)
    )
    divergence = (log_wanted.exp() * (log_wanted - log_found)).sum(dim=-1)
    return (divergence * keep).sum() / keep.sum()


def distil(student: LlamaForCausalLM, teacher: LlamaForCausalLM, rows: list[Row], options: Options) -> None:
    """Run all steps, logging as they go; the weights are kept in --out every 200."""
    optimizer = Optimizer(student, options.learning_rate, options.steps)
    began, mean = time.monotonic(), 0.0
    for step, batch in enumerate(batches(rows, options.batch)):
        loss = loss_of(student, teacher, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step(step)
        mean = loss.item() if step == 0 else 0.9 * mean + 0.1 * loss.item()
        if (step + 1) % LOG_EVERY == 0:
            left = (time.monotonic() - began) / (step + 1) * (options.steps - step - 1)
            print(
                f"step {step + 1}/{options.steps} divergence {mean:.4f} {left / 60:.1f} min left", flush=True
            )
        if (step + 1) % 200 == 0:
            save_model(student, options.out)


def main() -> None:
    """Make the text and the student, and write it to --out with the teacher's tokenizer."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(options.teacher / "tokenizer.json"))
    teacher = LlamaForCausalLM.from_pretrained(options.teacher, dtype=torch.bfloat16).eval()
    student = LlamaForCausalLM(student_config(options))
    needed = options.steps * options.batch
    texts = (render(item) for item in conversations(options.seed, needed * 10))
    distil(student, teacher, list(islice(pack(texts, tokenizer), needed)), options)
    for name in TEXT_FILES:
        shutil.copy(options.teacher / name, options.out / name)
    save_model(student, options.out)
    print(f"wrote {options.out}: {sum(p.numel() for p in student.parameters()):,} parameters")


if __name__ == "__main__":
    main()
