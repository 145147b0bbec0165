"""How many questions does a checkpoint answer right, greedily and through its chat template?"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from training.corpus import Conversation
from training.questions import FIRST_QUESTIONS, HELD_OUT, Question, is_right
from training.tokenizer import render
from training.tools.questions import FINAL_TOOLS
from training.trials import Trial, tool_trials, trials
from training.wide_questions import wide_questions


def answer(
    model: LlamaForCausalLM,
    tokenizer: Tokenizer,
    conversation: Conversation,
    max_tokens: int = 240,
    temperature: float = 0.0,
    enable_thinking: bool = False,
) -> str:
    """Return the assistant's next turn as text, marks included, control tokens not.

    temperature 0 is greedy; otherwise torch's global generator draws.
    """
    text = render(conversation, add_generation_prompt=True, enable_thinking=enable_thinking)
    prompt = torch.tensor([tokenizer.encode(text).ids])
    sampling = (
        {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    )
    with torch.inference_mode():
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_tokens,
            pad_token_id=3,
            eos_token_id=[2, 0],
            **sampling,
        )
    return str(tokenizer.decode(output[0, prompt.shape[1] :].tolist()))


def ask(model: LlamaForCausalLM, tokenizer: Tokenizer, question: str) -> str:
    """Return the greedy answer to a single user turn."""
    return answer(model, tokenizer, Conversation([{"role": "user", "content": question}]))


def score(
    model: LlamaForCausalLM, tokenizer: Tokenizer, questions: list[Question]
) -> tuple[int, list[tuple[Question, str]]]:
    """Return how many answers are right, and the wrong ones with their questions."""
    wrong = []
    for question in questions:
        text = ask(model, tokenizer, question.text)
        if not is_right(question, text):
            wrong.append((question, text))
    return len(questions) - len(wrong), wrong


def score_trials(
    model: LlamaForCausalLM, tokenizer: Tokenizer, trials_: list[Trial]
) -> tuple[int, list[tuple[str, str]]]:
    """Return how many turns are right, and the wrong ones with what was asked."""
    wrong = []
    for trial in trials_:
        text = answer(model, tokenizer, trial.conversation, enable_thinking=trial.thinks)
        if not trial.is_right(text):
            wrong.append((trial.label, text))
    return len(trials_) - len(wrong), wrong


def print_trials(model: LlamaForCausalLM, tokenizer: Tokenizer, groups: dict[str, list[Trial]]) -> None:
    """Print how many turns of each group are right, with every wrong one."""
    for name, group in groups.items():
        num_right, wrong = score_trials(model, tokenizer, group)
        print(f"{name}: {num_right} of {len(group)}")
        for asked, text in wrong:
            print(f"  {asked!r} -> {text!r}")


def main() -> None:
    """Print the score of a checkpoint, group by group, with every wrong answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--skills", action="store_true", help="ask for tool calls, JSON and reasoning instead"
    )
    parser.add_argument(
        "--final", action="store_true", help="ask the tool questions that are kept for final weights instead"
    )
    options = parser.parse_args()
    folder = options.folder
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if options.skills or options.final:
        final = {"final tool questions": tool_trials(FINAL_TOOLS)}
        print_trials(model, tokenizer, final if options.final else trials())
        return
    groups = {"first questions": FIRST_QUESTIONS, "held-out phrasings": HELD_OUT, **wide_questions()}
    total = right = 0
    for name, questions in groups.items():
        num_right, wrong = score(model, tokenizer, questions)
        total, right = total + len(questions), right + num_right
        print(f"{name}: {num_right} of {len(questions)}")
        for question, text in wrong:
            print(f"  {question.text!r} -> {text!r}")
    print(f"all: {right} of {total}")


if __name__ == "__main__":
    main()
