"""The text side of a served model, read from its checkpoint: tokenizer, template, sampling defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from engine_core.checkpoint.files import read_json
from engine_core.errors import InvalidRequestError, ModelLoadError
from engine_core.ipc.wire import ModelInfo
from engine_core.sampling_params import SamplingParams
from frontend.chat_template import ChatTemplate, load_chat_template
from frontend.tokenizer import Tokenizer

T = TypeVar("T")


class SamplingDefaults(msgspec.Struct, frozen=True):
    """Sampling values of generation_config.json; None where the checkpoint says nothing.

    A client's own value goes before these, and these before SamplingParams' defaults. A checkpoint that says
    `do_sample: false` is greedy by default, whatever temperature it names beside it.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


class _Mode(msgspec.Struct, frozen=True):
    do_sample: bool | None = None


@dataclass(slots=True, frozen=True)
class ModelAssets:
    """The text side of one model.

    Attributes:
        chat_template: None if the checkpoint has none; chat requests are then refused.
        eos_token_ids: ids that end a request unless ignore_eos.
        max_model_len: longest sequence, prompt and output together, in tokens.
        vocab_size: valid token ids are 0..vocab_size-1.
    """

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    sampling_defaults: SamplingDefaults
    eos_token_ids: tuple[int, ...]
    max_model_len: int
    vocab_size: int


def load_model_assets(info: ModelInfo, directory: str = "") -> ModelAssets:
    """Load the assets of a model; blocks for up to a second or two, so call it in a thread.

    Args:
        info: the model as the engine describes it.
        directory: where the files lie as this process sees them; "" takes info.path.

    Raises:
        ModelLoadError: names the file that is missing or wrong.
    """
    path = Path(directory or info.path)
    tokenizer = Tokenizer(path)
    return ModelAssets(
        tokenizer=tokenizer,
        chat_template=load_chat_template(path, tokenizer),
        sampling_defaults=load_sampling_defaults(path),
        eos_token_ids=tuple(info.eos_token_ids),
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
    )


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
    """Hold the values to the ranges of SamplingParams."""
    SamplingParams(
        temperature=_or(defaults.temperature, 1.0),
        top_p=_or(defaults.top_p, 1.0),
        top_k=_or(defaults.top_k, 0),
        min_p=_or(defaults.min_p, 0.0),
        repetition_penalty=_or(defaults.repetition_penalty, 1.0),
        max_tokens=defaults.max_new_tokens,
    ).validate()


def _or(value: T | None, otherwise: T) -> T:
    return otherwise if value is None else value
