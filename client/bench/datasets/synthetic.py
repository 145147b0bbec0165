"""Datasets that are made up: random texts, texts with shared beginnings, and conversations."""

from __future__ import annotations

import numpy as np

from splitserve.client.bench.datasets.sample import Conversation, Sample
from splitserve.client.bench.datasets.settings import DatasetSettings
from splitserve.client.bench.datasets.token_texts import TokenTexts


def random_texts(
    settings: DatasetSettings, texts: TokenTexts, rng: np.random.Generator
) -> list[Conversation]:
    """Return requests of random text; all of them begin with the same --random-prefix-len tokens."""
    prefix = texts.make(settings.random_prefix_len, rng) if settings.random_prefix_len else ""
    num_prompts = settings.num_prompts
    input_lens = _lengths(settings.random_input_len, settings.random_range_ratio, num_prompts, rng)
    output_lens = _lengths(settings.random_output_len, settings.random_range_ratio, num_prompts, rng)
    return [
        (_sample(prefix, settings.random_prefix_len + num_input, num_output, texts, rng),)
        for num_input, num_output in zip(input_lens, output_lens, strict=True)
    ]


def prefix_repetition(
    settings: DatasetSettings, texts: TokenTexts, rng: np.random.Generator
) -> list[Conversation]:
    """Return requests of a few shared beginnings with endings of their own, in random order."""
    num_prefixes = min(settings.prefix_repetition_num_prefixes, settings.num_prompts)
    prefix_len = settings.prefix_repetition_prefix_len
    prefixes = [texts.make(prefix_len, rng) for _ in range(num_prefixes)]
    num_tokens = prefix_len + settings.prefix_repetition_suffix_len
    samples = [
        (_sample(prefixes[i % num_prefixes], num_tokens, settings.prefix_repetition_output_len, texts, rng),)
        for i in range(settings.num_prompts)
    ]
    return [samples[i] for i in rng.permutation(len(samples))]


def multi_turn(settings: DatasetSettings, texts: TokenTexts, rng: np.random.Generator) -> list[Conversation]:
    """Return conversations of random questions, --num-prompts questions in all."""
    turns = settings.multi_turn_num_turns
    input_lens = _lengths(settings.random_input_len, settings.random_range_ratio, settings.num_prompts, rng)
    output_lens = _lengths(settings.random_output_len, settings.random_range_ratio, settings.num_prompts, rng)
    samples = [
        _sample("", num_input, num_output, texts, rng)
        for num_input, num_output in zip(input_lens, output_lens, strict=True)
    ]
    return [tuple(samples[i : i + turns]) for i in range(0, len(samples), turns)]


def _sample(
    prefix: str, num_tokens: int, max_tokens: int, texts: TokenTexts, rng: np.random.Generator
) -> Sample:
    text = texts.extend(prefix, num_tokens, rng) if prefix else texts.make(num_tokens, rng)
    return Sample(text, texts.count(text), max_tokens)


def _lengths(mean: int, ratio: float, count: int, rng: np.random.Generator) -> list[int]:
    """Return random lengths from mean * (1 - ratio) to mean * (1 + ratio), at least 1."""
    low, high = int(np.floor(mean * (1 - ratio))), int(np.ceil(mean * (1 + ratio)))
    lengths: list[int] = rng.integers(max(1, low), max(1, high) + 1, count).tolist()
    return lengths
