"""Checks the SamplingParams that a script made, and fits them to a prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from splitserve.engine_core.checkpoint.config.sampling_defaults import SamplingDefaults
from splitserve.engine_core.errors import ContextLengthError, InvalidRequestError
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.engine_core.sequence_sampling import MAX_PRIORITY, RepetitionDetection
from splitserve.engine_core.structured_outputs import StructuredOutputs
from splitserve.frontend.offline.jobs import list_items
from splitserve.frontend.typed_json.faults import Fault, find_fault


def params_of(defaults: SamplingDefaults) -> SamplingParams:
    """Return SamplingParams with the values that a checkpoint names."""
    named = {key: value for key, value in msgspec.structs.asdict(defaults).items() if value is not None}
    if (max_tokens := named.pop("max_new_tokens", None)) is not None:
        named["max_tokens"] = max_tokens
    return msgspec.structs.replace(SamplingParams(), **named)


def check_params(params: SamplingParams, vocab_size: int, max_logprobs: int) -> SamplingParams:
    """Check types, which a Struct made in Python does not, and take a single stop string or a list of them.

    Raises:
        InvalidRequestError: names the field.
    """
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError(
            f"sampling_params must be a SamplingParams or a list of them, got {type(params).__name__}",
            "sampling_params",
        )
    stop: str | Iterable[str] = params.stop
    values = msgspec.structs.asdict(params) | {
        "stop": (stop,) if isinstance(stop, str) else _tuple(stop),
        "stop_token_ids": _tuple(params.stop_token_ids),
    }
    if isinstance(params.repetition_detection, RepetitionDetection):
        values["repetition_detection"] = msgspec.structs.asdict(params.repetition_detection)
    if isinstance(params.structured_outputs, StructuredOutputs):
        values["structured_outputs"] = msgspec.structs.asdict(params.structured_outputs)
    try:
        checked = msgspec.convert(values, SamplingParams)
    except msgspec.ValidationError as error:
        fault = find_fault(SamplingParams, values)
        raise (fault or Fault("", str(error))).error("sampling_params") from None
    if checked.logprob_token_ids and checked.logprobs is None:
        checked = msgspec.structs.replace(checked, logprobs=0)
    checked.validate(vocab_size, max_logprobs)
    return checked


def check_params_of_all(
    given: SamplingParams | Sequence[SamplingParams], count: int, vocab_size: int, max_logprobs: int
) -> list[SamplingParams]:
    """Return one checked SamplingParams per prompt.

    Raises:
        InvalidRequestError: there are not as many as prompts, or names a field.
    """
    if isinstance(given, SamplingParams):
        return [check_params(given, vocab_size, max_logprobs)] * count
    many = list_items(given, "sampling_params", "a SamplingParams or a list of them")
    params = [check_params(each, vocab_size, max_logprobs) for each in many]
    if len(params) != count:
        raise InvalidRequestError(f"{count} prompts require one sampling_params each, got {len(params)}")
    return params


def _tuple(values: object) -> object:
    """Return any iterable as a tuple and None as an empty one; what is neither is refused by its type."""
    if values is None:
        return ()
    return tuple(values) if isinstance(values, Iterable) else values


def check_priorities(given: int | Sequence[int] | None, count: int) -> list[int]:
    """Return one priority per prompt.

    Raises:
        InvalidRequestError: there are not as many as prompts, or one is out of range.
    """
    if given is None:
        given = 0
    priorities = list(given) if isinstance(given, Sequence) else [given] * count
    if len(priorities) != count:
        raise InvalidRequestError(
            f"{count} prompts require one priority each, got {len(priorities)}", "priority"
        )
    for priority in priorities:
        if type(priority) is not int or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
            raise InvalidRequestError(
                f"priority must be an integer from {-MAX_PRIORITY} to {MAX_PRIORITY}, got {priority!r}",
                "priority",
            )
    return priorities


def check_adapters(given: str | Sequence[str | None] | None, count: int) -> list[str]:
    """Return the name of each prompt's adapter, "" for none.

    Raises:
        InvalidRequestError: there are not as many as prompts, or one is no name.
    """
    names = [given] * count if given is None or isinstance(given, str) else list(given)
    if len(names) != count:
        raise InvalidRequestError(f"{count} prompts require one lora each, got {len(names)}", "lora")
    for name in names:
        if name is not None and not isinstance(name, str):
            raise InvalidRequestError(f"lora must be the name of an adapter, got {name!r:.200}", "lora")
    return [name or "" for name in names]


def fit_context(params: SamplingParams, num_prompt_tokens: int, max_model_len: int) -> SamplingParams:
    """Lower max_tokens to what the context has room for: completions end there with "length" anyway.

    Raises:
        ContextLengthError: the prompt leaves no room for a token, and one is wanted.
    """
    room = max_model_len - num_prompt_tokens
    if room < (0 if params.max_tokens == 0 else 1):
        raise ContextLengthError.of(max_model_len, num_prompt_tokens, None, "prompt")
    if params.max_tokens is None or params.max_tokens <= room:
        return params
    return msgspec.structs.replace(params, max_tokens=room, min_tokens=min(params.min_tokens, room))
