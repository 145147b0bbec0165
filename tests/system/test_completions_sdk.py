"""Every field of /v1/completions as a user of the OpenAI SDK meets it, on the demo model."""

from __future__ import annotations

import pytest
from openai import OpenAI

pytestmark = pytest.mark.system

TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPT = TURN.format("Count from 1 to 20.")
STORY = TURN.format("Tell me a short story")


def tokenize(client: OpenAI, text: str) -> list[int]:
    return client.post("/../tokenize", body={"prompt": text}, cast_to=object)["tokens"]


def test_prompts_as_text_ids_and_lists_of_both_agree(client: OpenAI, model: str) -> None:
    token_ids = tokenize(client, PROMPT)
    other = tokenize(client, "Hello")
    as_text = client.completions.create(model=model, prompt=PROMPT, temperature=0, max_tokens=8)
    as_ids = client.completions.create(model=model, prompt=token_ids, temperature=0, max_tokens=8)
    texts = client.completions.create(model=model, prompt=["Hello", PROMPT], temperature=0, max_tokens=8)
    ids = client.completions.create(model=model, prompt=[other, token_ids], temperature=0, max_tokens=8)
    assert as_text.choices[0].text == as_ids.choices[0].text == texts.choices[1].text
    assert [c.text for c in texts.choices] == [c.text for c in ids.choices]
    assert ids.usage.prompt_tokens == len(other) + len(token_ids)


def test_max_tokens_defaults_to_sixteen(client: OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt=PROMPT, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"


def test_n_of_several_prompts_is_ordered_prompt_by_prompt(client: OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt=["Hello", PROMPT], n=2, temperature=0.7, seed=1, max_tokens=5
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    single = client.completions.create(model=model, prompt=PROMPT, n=2, temperature=0.7, seed=1, max_tokens=5)
    assert [c.text for c in single.choices] == [c.text for c in answer.choices[2:]]


def test_echo_repeats_the_prompt(client: OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt="Hello there", echo=True, temperature=0, max_tokens=3
    )
    assert answer.choices[0].text.startswith("Hello there")
    only = client.completions.create(model=model, prompt="Hello there", echo=True, max_tokens=0)
    assert only.choices[0].text == "Hello there"
    assert only.usage.completion_tokens == 0


def test_echo_with_logprobs_scores_the_prompt(client: OpenAI, model: str) -> None:
    token_ids = tokenize(client, PROMPT)
    answer = client.completions.create(
        model=model, prompt=token_ids, echo=True, logprobs=2, temperature=0, max_tokens=3
    )
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset)
    assert len(logprobs.tokens) == len(token_ids) + answer.usage.completion_tokens
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert all(len(top) >= 2 for top in logprobs.top_logprobs[1:])
    scored = client.completions.create(model=model, prompt=token_ids, echo=True, logprobs=2, max_tokens=0)
    assert scored.choices[0].logprobs.token_logprobs[1:] == pytest.approx(
        logprobs.token_logprobs[1 : len(token_ids)], abs=0
    )


def test_prompt_scores_equal_the_scores_while_generating(client: OpenAI, model: str) -> None:
    token_ids = tokenize(client, PROMPT)
    written = client.completions.create(
        model=model,
        prompt=token_ids,
        logprobs=0,
        temperature=0,
        max_tokens=12,
        extra_body={"return_token_ids": True},
    )
    both = token_ids + written.choices[0].token_ids
    scored = client.completions.create(model=model, prompt=both, echo=True, logprobs=0, max_tokens=0)
    tail = scored.choices[0].logprobs.token_logprobs[len(token_ids) :]
    assert tail == written.choices[0].logprobs.token_logprobs


def test_text_offsets_point_at_the_tokens(client: OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt=PROMPT, logprobs=1, temperature=0, max_tokens=10)
    choice = answer.choices[0]
    for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        assert choice.text[offset : offset + len(token)] == token


def test_return_token_ids_gives_prompt_and_output(client: OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt=PROMPT, temperature=0, max_tokens=6, extra_body={"return_token_ids": True}
    )
    choice = answer.choices[0]
    assert choice.prompt_token_ids == tokenize(client, PROMPT)
    text = client.post("/../detokenize", body={"tokens": choice.token_ids}, cast_to=object)["prompt"]
    assert text == choice.text


@pytest.mark.parametrize(
    "options",
    [
        {"extra_body": {"top_k": 1}, "temperature": 1.5},
        {"extra_body": {"min_p": 1.0}, "temperature": 1.5},
        {"top_p": 1e-6, "temperature": 1.5},
    ],
    ids=["top_k", "min_p", "top_p"],
)
def test_a_filter_that_keeps_one_token_is_greedy(client: OpenAI, model: str, options: dict) -> None:
    greedy = client.completions.create(model=model, prompt=PROMPT, temperature=0, max_tokens=24)
    filtered = client.completions.create(model=model, prompt=PROMPT, max_tokens=24, seed=9, **options)
    assert filtered.choices[0].text == greedy.choices[0].text


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty", "repetition_penalty"])
def test_each_penalty_changes_the_text(client: OpenAI, model: str, name: str) -> None:
    # Hot, since the demo model is too sure of its greedy text to be led away from it.
    base = {"model": model, "prompt": STORY, "temperature": 1.5, "seed": 3, "max_tokens": 80}
    plain = client.completions.create(**base).choices[0].text
    strong = client.completions.create(**base, extra_body={name: 2.0}).choices[0].text
    assert plain != strong


def test_streamed_completions_equal_those_at_once(client: OpenAI, model: str) -> None:
    options = {
        "model": model,
        "prompt": ["Hello", PROMPT],
        "n": 2,
        "temperature": 1.0,
        "seed": 11,
        "max_tokens": 20,
    }
    whole = client.completions.create(**options)
    texts: dict[int, str] = {}
    for chunk in client.completions.create(stream=True, **options):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == {choice.index: choice.text for choice in whole.choices}
