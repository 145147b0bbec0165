"""Datasets from files: ShareGPT's JSON, and JSON lines of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from splitserve.client.bench.datasets.sample import Conversation, Messages, Sample
from splitserve.client.bench.datasets.settings import DatasetSettings
from splitserve.client.bench.datasets.token_texts import TokenTexts
from splitserve.engine_core.errors import ConfigError

T = TypeVar("T")
# What the usual measurements on ShareGPT leave out: too short to measure, or too long for small contexts.
MIN_TOKENS = 4
MAX_PROMPT_TOKENS = 1024
MAX_TOTAL_TOKENS = 2048


class ShareGptMessage(msgspec.Struct, frozen=True):
    """One message of a ShareGPT file."""

    value: str


class ShareGptEntry(msgspec.Struct, frozen=True):
    """One conversation of a ShareGPT file."""

    conversations: list[ShareGptMessage] = []


class CustomLine(msgspec.Struct, frozen=True):
    """One line of a file of one's own: a prompt or messages, and how many tokens its answer has."""

    prompt: str | None = None
    messages: Messages | None = None
    output_tokens: int | None = None


def sharegpt(settings: DatasetSettings, texts: TokenTexts, rng: np.random.Generator) -> list[Conversation]:
    """Return first questions of a ShareGPT file; the answers there say how many tokens to ask for.

    Raises:
        ConfigError: the file cannot be read, or has nothing that fits.
    """
    entries = _decoded(_read(settings.dataset_path), list[ShareGptEntry], settings.dataset_path)
    found: list[Conversation] = []
    for i in _order(len(entries), settings, rng):
        if len(found) == settings.num_prompts:
            break
        said = entries[i].conversations
        sample = _first_turn(settings, said[0].value, said[1].value, texts) if len(said) > 1 else None
        if sample is not None:
            found.append((sample,))
    return _filled(found, settings)


def _first_turn(settings: DatasetSettings, question: str, answer: str, texts: TokenTexts) -> Sample | None:
    num_prompt = texts.count(question)
    num_output = settings.sharegpt_output_len or texts.count(answer)
    fits = MIN_TOKENS <= num_prompt <= MAX_PROMPT_TOKENS and num_prompt + num_output <= MAX_TOTAL_TOKENS
    # Without a tokenizer nothing is known of their lengths: all are taken, if the length to ask for is given.
    if num_output < MIN_TOKENS or (num_prompt and not fits):
        return None
    return Sample(question, num_prompt, num_output)


def custom(settings: DatasetSettings, texts: TokenTexts, rng: np.random.Generator) -> list[Conversation]:
    """Return the prompts of a file of JSON lines.

    Raises:
        ConfigError: the file cannot be read, or a line is not as CustomLine says; names the line.
    """
    lines = [line for line in _read(settings.dataset_path).splitlines() if line.strip()]
    found: list[Conversation] = []
    for i in _order(len(lines), settings, rng)[: settings.num_prompts]:
        where = f"line {i + 1} of {settings.dataset_path}"
        found.append((_custom_sample(_decoded(lines[i], CustomLine, where), where, settings, texts),))
    return _filled(found, settings)


def _custom_sample(line: CustomLine, where: str, settings: DatasetSettings, texts: TokenTexts) -> Sample:
    max_tokens = settings.custom_output_len
    if max_tokens == -1:
        if line.output_tokens is None or line.output_tokens < 1:
            raise ConfigError(f"{where} has no output_tokens, which --custom-output-len -1 needs")
        max_tokens = line.output_tokens
    if (line.prompt is None) == (line.messages is None):
        raise ConfigError(f"{where} must have either prompt or messages")
    if line.messages is not None:
        return Sample(line.messages, 0, max_tokens)
    assert line.prompt is not None
    return Sample(line.prompt, texts.count(line.prompt), max_tokens)


def _order(count: int, settings: DatasetSettings, rng: np.random.Generator) -> list[int]:
    if settings.disable_shuffle:
        return list(range(count))
    order: list[int] = rng.permutation(count).tolist()
    return order


def _filled(found: list[Conversation], settings: DatasetSettings) -> list[Conversation]:
    """Return as many as were asked for, the same ones again if there are too few and that is wanted."""
    if not found:
        raise ConfigError(f"nothing in {settings.dataset_path} fits")
    if settings.no_oversample:
        return found
    return [found[i % len(found)] for i in range(settings.num_prompts)]


def _read(path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def _decoded(raw: bytes, kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: {error}") from None
