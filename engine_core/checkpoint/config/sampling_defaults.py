"""Which sampling parameters a checkpoint recommends in generation_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from splitserve.engine_core.checkpoint.files import read_json
from splitserve.engine_core.errors import InvalidRequestError, ModelLoadError
from splitserve.engine_core.sequence_sampling import SequenceSampling

T = TypeVar("T")


class SamplingDefaults(msgspec.Struct, frozen=True):
    """Sampling values of generation_config.json; None where the checkpoint says nothing.

    A client's own value takes precedence over these, and these over SamplingParams' defaults. A checkpoint
    that says `do_sample: false` is greedy by default, whatever temperature it gives.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


class _Mode(msgspec.Struct, frozen=True):
    do_sample: bool | None = None


def load_sampling_defaults(directory: Path) -> SamplingDefaults:
    """Read the keys of generation_config.json that are sampling parameters; all others are ignored.

    Raises:
        ModelLoadError: a value has the wrong type or is out of range.
    """
    path = directory / "generation_config.json"
    values = read_json(path)
    try:
        defaults = msgspec.convert(values, SamplingDefaults)
        _check(defaults)
        if msgspec.convert(values, _Mode).do_sample is False:
            defaults = msgspec.structs.replace(defaults, temperature=0.0)
    except (msgspec.ValidationError, InvalidRequestError) as error:
        raise ModelLoadError(f"{path}: {error}") from None
    return defaults


def _check(defaults: SamplingDefaults) -> None:
    """Check the values against the ranges of SequenceSampling."""
    SequenceSampling(
        temperature=_or(defaults.temperature, 1.0),
        top_p=_or(defaults.top_p, 1.0),
        top_k=_or(defaults.top_k, 0),
        min_p=_or(defaults.min_p, 0.0),
        repetition_penalty=_or(defaults.repetition_penalty, 1.0),
        max_tokens=defaults.max_new_tokens,
    ).validate()


def _or(value: T | None, otherwise: T) -> T:
    return otherwise if value is None else value
