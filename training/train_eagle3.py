"""How is an EAGLE-3 head made for the demo model? `python -m training.train_eagle3`, some minutes of a CPU.

It learns, on the text of the demo model, what that would say at each place, as in training.distill; in
several rounds, each of which goes on with the head's own states of the one before.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import LlamaForCausalLM

from training.checkpoint import config_dict, model_config, write_json
from training.corpus import conversations
from training.eagle3 import READ_LAYERS, Eagle3
from training.optimizer import Optimizer
from training.packing import Row, pack, stack
from training.tokenizer import render
from training.train import batches

LOG_EVERY = 20
# Of a round's loss in the sum, relative to the round before.
ROUND_WEIGHT = 0.8


@dataclass(frozen=True, slots=True)
class Options:
    """What one run does; the same options give the same text, order and learning rates."""

    model: Path
    out: Path
    rounds: int
    steps: int
    batch: int
    learning_rate: float
    seed: int
    threads: int


def parse_options() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("engine_core/demo_model"))
    parser.add_argument("--out", type=Path, default=Path("build/demo_eagle3"))
    parser.add_argument("--rounds", type=int, default=4, help="places that the head learns to go on for")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=4, help="rows per step")
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=37)
    parser.add_argument("--threads", type=int, default=2)
    return Options(**vars(parser.parse_args()))


class Teacher:
    """The model, its hidden states and what it says."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self._model = model
        self._end = torch.empty(0)
        model.model.norm.register_forward_pre_hook(self._take_end)

    def _take_end(self, module: object, given: tuple[torch.Tensor, ...]) -> None:
        self._end = given[0]

    @torch.no_grad()
    def read(self, tokens: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states that a head reads, side by side, and the logits, of tokens [B, T]."""
        found = self._model(tokens, attention_mask=mask, use_cache=False, output_hidden_states=True)
        # The library's last ones are behind the norm.
        states = [*found.hidden_states[:-1], self._end]
        return torch.cat([states[layer] for layer in READ_LAYERS], dim=-1), found.logits


def loss_of(head: Eagle3, teacher: Teacher, batch: list[Row], num_rounds: int) -> tuple[torch.Tensor, float]:
    """Return the loss, and how often the head's first choice in the first round is the teacher's."""
    tokens, weights, segments = (torch.from_numpy(array) for array in stack(batch))
    sees = segments[:, :, None] == segments[:, None, :]
    with torch.autocast("cpu", torch.bfloat16):
        states, wanted = teacher.read(tokens, torch.tril(sees)[:, None])
        rounds = head(states[:, :-2], tokens[:, 1:-1], sees[:, :-2, :-2], num_rounds)
    log_wanted = functional.log_softmax(wanted[:, 1:-1].float(), dim=-1)
    keep = weights[:, 2:] * (segments[:, 2:] == segments[:, :-2])
    total = torch.zeros(())
    for i, logits in enumerate(rounds):
        log_found = functional.log_softmax(logits.float(), dim=-1)
        divergence = (log_wanted.exp() * (log_wanted - log_found)).sum(dim=-1)
        # The last state of the model's is of the same conversation.
        kept = keep.clone()
        kept[:, i:] *= segments[:, i : segments.shape[1] - 2] == segments[:, : segments.shape[1] - 2 - i]
        kept[:, :i] = 0
        total = total + ROUND_WEIGHT**i * (divergence * kept).sum() / kept.sum()
    agrees = (rounds[0].argmax(dim=-1) == wanted[:, 1:-1].argmax(dim=-1)) * keep
    return total, (agrees.sum() / keep.sum()).item()


def rows(options: Options, tokenizer: Tokenizer) -> Iterator[list[Row]]:
    """Yield the batches of a run."""
    needed = options.steps * options.batch
    texts = (render(item) for item in conversations(options.seed, needed * 10))
    return batches(list(islice(pack(texts, tokenizer), needed)), options.batch)


def save_head(head: Eagle3, folder: Path) -> None:
    """Write config.json and model.safetensors (bf16), in the layout of published heads."""
    weights = {name: tensor.detach().to(torch.bfloat16) for name, tensor in head.state_dict().items()}
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    write_json(
        folder / "config.json",
        config_dict(model_config())
        | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "num_hidden_layers": 1,
            "tie_word_embeddings": False,
            "eagle_aux_hidden_state_layer_ids": list(READ_LAYERS),
        },
    )


def main() -> None:
    """Make the text and the head, and write it to --out."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    model = LlamaForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).eval().requires_grad_(False)
    head = Eagle3(model_config(), model.get_input_embeddings().weight.detach().float())
    teacher, optimizer = Teacher(model), Optimizer(head, options.learning_rate, options.steps)
    began, mean, mean_agreement = time.monotonic(), 0.0, 0.0
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    for step, batch in enumerate(rows(options, tokenizer)):
        loss, agreement = loss_of(head, teacher, batch, options.rounds)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step(step)
        share = 1.0 if step == 0 else 0.1
        mean += share * (loss.item() - mean)
        mean_agreement += share * (agreement - mean_agreement)
        if (step + 1) % LOG_EVERY == 0:
            left = (time.monotonic() - began) / (step + 1) * (options.steps - step - 1) / 60
            print(
                f"step {step + 1}/{options.steps} loss {mean:.4f} agreement {mean_agreement:.1%} "
                f"{left:.1f} min left",
                flush=True,
            )
            save_head(head, options.out)
    save_head(head, options.out)
    print(f"wrote {options.out}: {sum(p.numel() for p in head.parameters()):,} parameters")


if __name__ == "__main__":
    main()
