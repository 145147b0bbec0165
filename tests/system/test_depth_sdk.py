"""Sampling in depth through the OpenAI SDK's extra_body: allowed ids, bad words, given logprobs, loops."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

pytestmark = pytest.mark.system

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
COUNT = [{"role": "user", "content": "Count from 1 to 20."}]


def tokenize(client: OpenAI, text: str) -> list[int]:
    body = {"prompt": text, "add_special_tokens": False}
    return client.post("/../tokenize", body=body, cast_to=object)["tokens"]


def ask(
    client: OpenAI, model: str, messages: list[dict], *, seed: int = 0, temperature: float = 0, **extra: Any
) -> Any:
    """The only choice of a chat answer of at most 24 tokens, with its token ids."""
    answer = client.chat.completions.create(
        model=model,
        messages=messages,
        temperature=temperature,
        seed=seed,
        max_tokens=24,
        extra_body={"return_token_ids": True, **extra},
    )
    return answer.choices[0]


def holds(token_ids: list[int], sequence: list[int]) -> bool:
    return any(token_ids[i : i + len(sequence)] == sequence for i in range(len(token_ids)))


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_only_allowed_ids_are_generated_and_no_eos_among_them(
    client: OpenAI, model: str, temperature: float
) -> None:
    allowed = tokenize(client, "1 2 3 capital")
    choice = ask(client, model, CAPITAL, temperature=temperature, allowed_token_ids=allowed)
    assert set(choice.token_ids) <= set(allowed)
    assert len(choice.token_ids) == 24
    assert choice.finish_reason == "length"


def test_an_allowed_eos_ends_the_answer(client: OpenAI, model: str) -> None:
    eos_id = ask(client, model, CAPITAL).token_ids[-1]
    choice = ask(client, model, CAPITAL, allowed_token_ids=[eos_id])
    assert (choice.token_ids, choice.finish_reason, choice.message.content) == ([eos_id], "stop", "")


def test_bad_words_stay_out_and_others_take_their_place(client: OpenAI, model: str) -> None:
    plain = ask(client, model, CAPITAL)
    spellings = [tokenize(client, "Paris"), tokenize(client, " Paris")]
    assert any(holds(plain.token_ids, spelling) for spelling in spellings)
    choice = ask(client, model, CAPITAL, bad_words=["Paris"])
    assert not any(holds(choice.token_ids, spelling) for spelling in spellings)
    assert choice.message.content != plain.message.content
    unrelated = ask(client, model, CAPITAL, bad_words=["Reykjavik", "qqqq"])
    assert unrelated.token_ids == plain.token_ids


def test_a_bad_word_of_several_tokens_forbids_the_last_only(client: OpenAI, model: str) -> None:
    plain = ask(client, model, COUNT, ignore_eos=True)
    text = plain.message.content
    word = text[:8]
    assert len(tokenize(client, word)) > 1
    choice = ask(client, model, COUNT, ignore_eos=True, bad_words=[word])
    last = len(tokenize(client, word)) - 1
    assert choice.token_ids[:last] == plain.token_ids[:last]
    assert choice.token_ids[last] != plain.token_ids[last]


def test_given_ids_have_the_logprobs_of_the_alternatives(client: OpenAI, model: str) -> None:
    options = {"model": model, "messages": CAPITAL, "temperature": 0, "max_tokens": 3, "logprobs": True}
    top = client.chat.completions.create(**options, top_logprobs=20, extra_body={"return_token_ids": True})
    first = top.choices[0].logprobs.content[0]
    ids = top.choices[0].token_ids
    scored = client.chat.completions.create(**options, extra_body={"logprob_token_ids": [ids[0], ids[1]]})
    entries = scored.choices[0].logprobs.content
    assert [entry.logprob for entry in entries] == [e.logprob for e in top.choices[0].logprobs.content]
    assert [len(entry.top_logprobs) for entry in entries] == [2, 2, 2]
    assert entries[0].top_logprobs[0].logprob == first.logprob
    assert entries[1].top_logprobs[1].logprob == entries[1].logprob
    streamed = client.chat.completions.create(
        **options, stream=True, extra_body={"logprob_token_ids": [ids[0], ids[1]]}
    )
    chunks = [e for c in streamed for choice in c.choices if choice.logprobs for e in choice.logprobs.content]
    assert chunks == entries


def test_given_ids_in_completions_stand_in_top_logprobs(client: OpenAI, model: str) -> None:
    token_id = tokenize(client, "a")[0]
    answer = client.completions.create(
        model=model,
        prompt="Once",
        temperature=0,
        max_tokens=2,
        logprobs=0,
        extra_body={"logprob_token_ids": [token_id], "logit_bias": {str(token_id): 100}},
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens == ["a", "a"]
    assert [top["a"] for top in logprobs.top_logprobs] == logprobs.token_logprobs


@pytest.mark.parametrize("k", [0, 3])
def test_prompt_logprobs_map_ids_to_logprob_rank_and_text(client: OpenAI, model: str, k: int) -> None:
    extra = {"prompt_logprobs": k, "return_token_ids": True}
    chat = client.chat.completions.create(model=model, messages=CAPITAL, max_tokens=1, extra_body=extra)
    text = client.completions.create(model=model, prompt="Two and two", max_tokens=1, extra_body=extra)
    for token_ids, scores in (
        (chat.prompt_token_ids, chat.prompt_logprobs),
        (text.choices[0].prompt_token_ids, text.choices[0].prompt_logprobs),
    ):
        assert scores[0] is None
        assert len(scores) == len(token_ids)
        for token_id, position in zip(token_ids[1:], scores[1:], strict=True):
            assert position[str(token_id)].keys() == {"logprob", "rank", "decoded_token"}
            assert set(range(1, k + 1)) <= {entry["rank"] for entry in position.values()}
            assert len(position) in (max(1, k), k + 1)


@pytest.mark.parametrize(("count", "pattern"), [(2, 1), (5, 1), (3, 4)])
def test_a_loop_ends_with_repetition(client: OpenAI, model: str, count: int, pattern: int) -> None:
    detection = {"max_pattern_size": 8, "min_pattern_size": pattern, "min_count": count}
    extra: dict[str, Any] = {
        "ignore_eos": True,
        "logit_bias": {str(tokenize(client, "a")[0]): 100},
        "repetition_detection": detection,
    }
    choice = ask(client, model, COUNT, **extra)
    assert (len(choice.token_ids), choice.finish_reason) == (count * pattern, "repetition")
    assert choice.message.content == "a" * count * pattern
    chunks = list(
        client.chat.completions.create(
            model=model, messages=COUNT, temperature=0, stream=True, extra_body=extra
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "a" * count * pattern
    assert chunks[-1].choices[0].finish_reason == "repetition"


def test_an_answer_without_a_loop_is_not_ended(client: OpenAI, model: str) -> None:
    detection = {"max_pattern_size": 12, "min_count": 4}
    plain = ask(client, model, COUNT)
    assert ask(client, model, COUNT, repetition_detection=detection).token_ids == plain.token_ids


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_leaves_no_token_is_refused(client: OpenAI, model: str, stream: bool) -> None:
    eos_id = ask(client, model, CAPITAL).token_ids[-1]
    with pytest.raises(BadRequestError) as caught:
        client.chat.completions.create(
            model=model,
            messages=CAPITAL,
            stream=stream,
            extra_body={"allowed_token_ids": [eos_id], "min_tokens": 2},
        )
    assert caught.value.code == "no_token_left"


BAD = [
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [10**7]}, "allowed_token_ids"),
    ({"allowed_token_ids": [1] * 10_001}, "allowed_token_ids"),
    ({"bad_words": ["a"] * 129}, "bad_words"),
    ({"bad_words": [""]}, "bad_words[0]"),
    ({"bad_words": ["a" * 257]}, "bad_words[0]"),
    ({"logprobs": True, "logprob_token_ids": [1] * 129}, "logprob_token_ids"),
    ({"logprobs": True, "logprob_token_ids": [10**7]}, "logprob_token_ids"),
    ({"logprob_token_ids": [1]}, "logprob_token_ids"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"repetition_detection": {"max_pattern_size": 1025}}, "repetition_detection.max_pattern_size"),
    ({"repetition_detection": {"max_pattern_size": 4, "min_count": 1}}, "repetition_detection.min_count"),
]


@pytest.mark.parametrize(("extra", "param"), BAD, ids=[f"{param}-{i}" for i, (_, param) in enumerate(BAD)])
def test_values_out_of_range_are_named(client: OpenAI, model: str, extra: dict, param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=CAPITAL, max_tokens=1, extra_body=extra)
    assert caught.value.param == param


def test_neighbours_with_other_parameters_change_nothing(client: OpenAI, model: str) -> None:
    digits = tokenize(client, "0123456789 ,")
    kinds: list[dict[str, Any]] = [
        {"allowed_token_ids": digits},
        {"bad_words": ["Paris", "the", "is"]},
        {"repetition_detection": {"max_pattern_size": 4}, "repetition_penalty": 0.5},
        {"logit_bias": {str(digits[0]): 4}, "min_tokens": 5},
        {"top_k": 5, "min_p": 0.05, "presence_penalty": 1.0},
    ]

    def run(i: int) -> list[int]:
        kind = kinds[i % len(kinds)]
        return ask(client, model, CAPITAL, temperature=0.0 if i % 3 == 0 else 1.3, seed=i, **kind).token_ids

    alone = [run(i) for i in range(15)]
    with ThreadPoolExecutor(15) as pool:
        assert list(pool.map(run, range(15))) == alone
