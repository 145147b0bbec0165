"""A request's tokens do not depend on who else is served: seeds repeat and neighbours change nothing."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI

pytestmark = pytest.mark.system

STORY = [{"role": "user", "content": "Tell me a story."}]


def ask(client: OpenAI, model: str, **options: Any) -> tuple[list[int], list[float]]:
    answer = client.chat.completions.create(
        model=model,
        messages=STORY,
        max_tokens=60,
        logprobs=True,
        extra_body={"return_token_ids": True},
        **options,
    )
    choice = answer.choices[0]
    return choice.token_ids, [entry.logprob for entry in choice.logprobs.content]


def make_noise(client: OpenAI, model: str, seed: int) -> None:
    rng = random.Random(seed)
    text = " ".join(
        rng.choice(["count", "france", "what", "is", "7", "plus"]) for _ in range(rng.randint(1, 120))
    )
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": text}],
        max_tokens=rng.randint(5, 80),
        temperature=rng.choice([0, 0.5, 1.5]),
        seed=seed,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for i, _ in enumerate(stream):
        if i == 10 and seed % 4 == 0:
            stream.close()
            return


def test_the_same_seed_repeats_and_another_does_not(client: OpenAI, model: str) -> None:
    first = ask(client, model, temperature=1.5, seed=1234)
    assert ask(client, model, temperature=1.5, seed=1234) == first
    assert ask(client, model, temperature=1.5, seed=1235) != first


def test_without_a_seed_answers_vary(client: OpenAI, model: str) -> None:
    assert len({tuple(ask(client, model, temperature=1.5)[0]) for _ in range(4)}) > 1


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"temperature": 1.2, "seed": 77}], ids=["greedy", "seeded"]
)
def test_sixteen_noisy_neighbours_change_no_token_and_no_logprob(
    client: OpenAI, model: str, options: dict
) -> None:
    alone = ask(client, model, **options)
    with ThreadPoolExecutor(20) as pool:
        noise = [pool.submit(make_noise, client, model, seed) for seed in range(16)]
        among = [pool.submit(ask, client, model, **options) for _ in range(3)]
        assert [future.result() for future in among] == [alone] * 3
        for future in noise:
            future.result()
