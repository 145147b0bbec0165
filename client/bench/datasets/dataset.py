"""The requests of a dataset, by its name."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from splitserve.client.bench.datasets import files, synthetic
from splitserve.client.bench.datasets.sample import Conversation
from splitserve.client.bench.datasets.settings import DatasetSettings
from splitserve.client.bench.datasets.token_texts import (
    TokenizerTexts,
    TokenTexts,
    WordTexts,
    load_tokenizer,
)

MAKERS: dict[str, Callable[[DatasetSettings, TokenTexts, np.random.Generator], list[Conversation]]] = {
    "random": synthetic.random_texts,
    "prefix_repetition": synthetic.prefix_repetition,
    "multi_turn": synthetic.multi_turn,
    "sharegpt": files.sharegpt,
    "custom": files.custom,
}


def make_dataset(settings: DatasetSettings, model: str) -> list[Conversation]:
    """Return the requests that the settings ask for; the same ones for the same settings.

    Args:
        settings: of the dataset.
        model: whose tokenizer is taken unless the settings name one.

    Raises:
        ConfigError: there is no tokenizer or file as they say.
    """
    settings = _with_lengths(settings)
    texts: TokenTexts = (
        WordTexts()
        if settings.skip_tokenizer_init
        else TokenizerTexts(load_tokenizer(settings.tokenizer or model))
    )
    return MAKERS[settings.dataset_name](settings, texts, np.random.default_rng(settings.seed))


def _with_lengths(settings: DatasetSettings) -> DatasetSettings:
    """Return the settings with the lengths for every dataset in the places of those of each."""
    if settings.input_len is not None:
        settings = msgspec.structs.replace(settings, random_input_len=settings.input_len)
    if settings.output_len is None:
        return settings
    return msgspec.structs.replace(
        settings,
        random_output_len=settings.output_len,
        prefix_repetition_output_len=settings.output_len,
        sharegpt_output_len=settings.output_len,
        custom_output_len=settings.output_len,
    )
