"""What the clients of a fault test ask for: requests of every kind whose tokens they decide themselves."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

WORDS = [
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
    "me",
    "a",
    "story",
    "cats",
]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


class Ask(NamedTuple):
    """One request; its body decides every token of the answer."""

    path: str
    body: dict[str, Any]

    @property
    def streams(self) -> bool:
        """Whether the answer comes in events."""
        return bool(self.body.get("stream"))


def mixed_asks(count: int, num_tokens: int, seed: int = 0) -> list[Ask]:
    """Draw requests of all kinds in turn, most of which generate so many tokens."""
    rng = random.Random(seed)
    return [KINDS[i % len(KINDS)](rng, num_tokens) for i in range(count)]


def greedy_asks(count: int, num_tokens: int, prompt: list[int] | None = None) -> list[Ask]:
    """Draw plain streams of exactly so many tokens, over one prompt if it is given."""
    rng = random.Random(1)
    more = {"stream": True, "ignore_eos": True, "max_tokens": num_tokens, "temperature": 0}
    prompts: list[Any] = [[*prompt, i % 100 + 10, 11] if prompt else _text(rng) for i in range(count)]
    return [Ask(COMPLETIONS, {"prompt": each, **more}) for each in prompts]


def _text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(4, 30)))


def _completion(rng: random.Random, num_tokens: int, **more: Any) -> Ask:
    body = {"prompt": _text(rng), "stream": True, "max_tokens": num_tokens, "ignore_eos": True}
    return Ask(COMPLETIONS, {**body, "seed": rng.getrandbits(32), **more})


def _chat(rng: random.Random, num_tokens: int, **more: Any) -> Ask:
    body = {"messages": [{"role": "user", "content": _text(rng)}], "stream": True, "ignore_eos": True}
    return Ask(CHAT, {**body, "max_tokens": num_tokens, "seed": rng.getrandbits(32), **more})


def _greedy(rng: random.Random, num_tokens: int) -> Ask:
    return _completion(rng, num_tokens, temperature=0)


def _sampled_chat(rng: random.Random, num_tokens: int) -> Ask:
    return _chat(rng, num_tokens, temperature=0.9, top_p=0.95, stream_options={"include_usage": True})


def _two_choices(rng: random.Random, num_tokens: int) -> Ask:
    return _completion(rng, num_tokens, n=2, temperature=1.0, top_k=20)


def _logprobs(rng: random.Random, num_tokens: int) -> Ask:
    return _completion(rng, num_tokens, logprobs=2, temperature=0.7)


def _chat_logprobs(rng: random.Random, num_tokens: int) -> Ask:
    return _chat(rng, num_tokens, logprobs=True, top_logprobs=3, temperature=0.7)


def _stop_strings(rng: random.Random, num_tokens: int) -> Ask:
    return _completion(rng, num_tokens, stop=["xylophone quartz", "e. The z"], temperature=1.0)


def _penalties(rng: random.Random, num_tokens: int) -> Ask:
    limits = {"min_tokens": num_tokens // 2, "ignore_eos": False}
    return _completion(
        rng, num_tokens, presence_penalty=0.6, frequency_penalty=0.4, repetition_penalty=1.2, **limits
    )


def _whole(rng: random.Random, num_tokens: int) -> Ask:
    return _chat(rng, num_tokens, stream=False, temperature=0.8)


def _beams(rng: random.Random, num_tokens: int) -> Ask:
    more = {"use_beam_search": True, "n": 2, "temperature": 0, "stream": False, "ignore_eos": False}
    return _completion(rng, min(num_tokens, 24), **more)


def _prompt_logprobs(rng: random.Random, num_tokens: int) -> Ask:
    return _completion(rng, num_tokens, stream=False, prompt_logprobs=1, logprobs=1, temperature=0.5)


def _usage_always(rng: random.Random, num_tokens: int) -> Ask:
    options = {"include_usage": True, "continuous_usage_stats": True}
    return _completion(rng, num_tokens, temperature=0, stream_options=options)


def _token_ids(rng: random.Random, num_tokens: int) -> Ask:
    return _chat(rng, num_tokens, return_token_ids=True, temperature=1.1, min_p=0.02)


def _several_prompts(rng: random.Random, num_tokens: int) -> Ask:
    return _completion(rng, num_tokens, prompt=[_text(rng), _text(rng)], temperature=0.6)


def _echo(rng: random.Random, num_tokens: int) -> Ask:
    return _completion(rng, num_tokens, echo=True, logprobs=1, temperature=0)


def _bias(rng: random.Random, num_tokens: int) -> Ask:
    return _chat(rng, num_tokens, logit_bias={"100": 2.0, "200": -50.0}, temperature=1.0)


def _until_eos(rng: random.Random, num_tokens: int) -> Ask:
    return _chat(rng, num_tokens, ignore_eos=False, n=2, temperature=0.9)


def _json(rng: random.Random, num_tokens: int) -> Ask:
    record = {"properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]}
    # Goes on for as long as there are tokens.
    schema = {"type": "array", "items": {"type": "object", **record}, "minItems": 1000}
    form = {"type": "json_schema", "json_schema": {"name": "people", "schema": schema}}
    return _chat(rng, num_tokens, response_format=form, temperature=1.0)


def _regex(rng: random.Random, num_tokens: int) -> Ask:
    return _completion(rng, num_tokens, structured_outputs={"regex": "([a-z]+, )*"}, temperature=1.2)


KINDS = (
    _greedy,
    _sampled_chat,
    _two_choices,
    _logprobs,
    _chat_logprobs,
    _stop_strings,
    _penalties,
    _whole,
    _beams,
    _prompt_logprobs,
    _usage_always,
    _token_ids,
    _several_prompts,
    _echo,
    _bias,
    _until_eos,
    _json,
    _regex,
)
