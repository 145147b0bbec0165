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
from training.wide_questions import wide_questions


def answer(
    model: LlamaForCausalLM,
    tokenizer: Tokenizer,
    conversation: Conversation,
    max_tokens: int = 240,
    temperature: float = 0.0,
) -> str:
    """Return the assistant's next turn as text, tool marks included, control tokens not.

    temperature 0 is greedy; otherwise torch's global generator draws.
    """
    prompt = torch.tensor([tokenizer.encode(render(conversation, add_generation_prompt=True)).ids])
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


def main() -> None:
    """Print the score of a checkpoint, group by group, with every wrong answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
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
