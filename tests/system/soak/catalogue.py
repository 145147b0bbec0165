"""What the soak's clients ask for, and how: requests that decide their answers, and ways of asking."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

VOCAB_SIZE = 2048
# More blocks than the pool has; with tails and outputs more than the CPU offload tier has, too.
NUM_PREFIXES = 10
PREFIX_TOKENS = (100, 480)
WORDS = (
    "what",
    "is",
    "the",
    "capital",
    "of",
    "France",
    "count",
    "to",
    "20",
    "tell",
    "a",
    "story",
    "7",
    "plus",
)


class Ask(NamedTuple):
    """One request: a route, and a body that decides every token (seed included) and no more."""

    path: str
    body: dict[str, Any]


class Delivery(NamedTuple):
    """How a request is asked, which must not change a token of it.

    Attributes:
        stream: as server-sent events.
        extra: fields that decide when it runs and what is shown of it, not what comes out.
        hang_up_after: events of a stream after which the client closes the connection; -1 for never.
        hang_up_s: seconds after which it closes the connection of a whole answer; 0 for never.
    """

    stream: bool
    extra: dict[str, Any]
    hang_up_after: int = -1
    hang_up_s: float = 0.0


ALONE = Delivery(stream=False, extra={"return_token_ids": True})


def make_catalogue(rng: random.Random, size: int) -> list[Ask]:
    """Draw requests over few long prefixes, so that they find, evict and bring back each other's blocks."""
    prefixes = [_tokens(rng, rng.randint(*PREFIX_TOKENS)) for _ in range(NUM_PREFIXES)]
    systems = [" ".join(rng.choices(WORDS, k=rng.randint(30, 150))) for _ in range(NUM_PREFIXES // 2)]
    return [_chat(rng, systems) if rng.random() < 0.3 else _completion(rng, prefixes) for _ in range(size)]


def draw_delivery(rng: random.Random, ask: Ask) -> Delivery:
    """Draw a way to ask: priorities always; timeouts and hanging up now and then."""
    can_stream = "prompt_logprobs" not in ask.body and "use_beam_search" not in ask.body
    extra: dict[str, Any] = {"priority": rng.randint(-5, 5)}
    # Streams of nothing but text take a way of their own.
    extra["return_token_ids"] = rng.random() < 0.4
    if rng.random() < 0.1:
        extra["timeout"] = rng.uniform(0.02, 1.0)
    if rng.random() < 0.1:
        extra["queue_timeout"] = rng.uniform(0.01, 0.5)
    hangs_up = rng.random() < 0.15
    if can_stream and rng.random() < 0.6:
        if rng.random() < 0.5:
            extra["stream_options"] = {"include_usage": True}
        return Delivery(True, extra, hang_up_after=rng.randint(0, 12) if hangs_up else -1)
    return Delivery(False, extra, hang_up_s=rng.uniform(0.01, 0.5) if hangs_up else 0.0)


def _completion(rng: random.Random, prefixes: list[list[int]]) -> Ask:
    prompt = rng.choice(prefixes) + _tokens(rng, rng.randint(1, 60))
    if rng.random() < 0.05:
        return Ask("/v1/completions", {"prompt": prompt, **_beam_search(rng)})
    body = {"prompt": prompt, **_sampling(rng)}
    if rng.random() < 0.3:
        body["logprobs"] = rng.randint(0, 4)
    if rng.random() < 0.1:
        body["prompt_logprobs"] = 1
    return Ask("/v1/completions", body)


def _chat(rng: random.Random, systems: list[str]) -> Ask:
    question = " ".join(rng.choices(WORDS, k=rng.randint(1, 20)))
    messages = [{"role": "system", "content": rng.choice(systems)}, {"role": "user", "content": question}]
    body = {"messages": messages, **_sampling(rng)}
    if rng.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": rng.randint(0, 4)}
    return Ask("/v1/chat/completions", body)


def _beam_search(rng: random.Random) -> dict[str, Any]:
    return {"use_beam_search": True, "n": 2, "temperature": 0, "max_tokens": rng.choice([1, 8, 20])}


def _sampling(rng: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {
        "max_tokens": rng.choice([1, 8, 30, 60, 120]),
        "temperature": rng.choice([0, 0, 0.7, 1.2]),
        "top_p": rng.choice([1, 1, 0.9]),
        "top_k": rng.choice([0, 0, 20]),
        "seed": rng.getrandbits(32),
        "n": rng.choice([1, 1, 1, 1, 2, 3]),
        "ignore_eos": rng.random() < 0.7,
    }
    rare = _rare(rng, body["max_tokens"])
    return body | {name: rare[name] for name in rare if rng.random() < 0.15}


def _rare(rng: random.Random, max_tokens: int) -> dict[str, Any]:
    """Features that few requests have, so that steps mix rows with and without."""
    return {
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.2,
        "min_p": 0.05,
        "min_tokens": min(6, max_tokens),
        "stop": rng.sample(["e", " the", "an", "1", "zq"], k=2),
        "include_stop_str_in_output": True,
        "stop_token_ids": _tokens(rng, 40),
        "logit_bias": {str(token_id): rng.uniform(-9, 9) for token_id in _tokens(rng, 8)},
        "bad_words": ["a", "of"],
    }


def _tokens(rng: random.Random, count: int) -> list[int]:
    # The first ids are control tokens.
    return [rng.randrange(8, VOCAB_SIZE) for _ in range(count)]
