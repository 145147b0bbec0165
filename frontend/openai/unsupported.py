"""Known fields that are not served: those that change the output get 400, the harmless are ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from engine_core.errors import InvalidRequestError

Predicate = Callable[[object], bool]


def _none_or(*values: object) -> Predicate:
    # `is` for booleans: 1 == True would let an integer pass for a switch.
    return lambda given: (
        given is None or any(given == value and type(given) is type(value) for value in values)
    )


_UNSET = _none_or()
_EMPTY = _none_or([], {}, "")
_OFF = _none_or(False)
_ZERO = _none_or(0, 0.0)
_ONE = _none_or(1, 1.0)

# Field -> which values change nothing and are therefore accepted.
REFUSED: Final[dict[str, Predicate]] = {
    # OpenAI
    "tools": _EMPTY,
    "tool_choice": _none_or("none", "auto"),
    "functions": _EMPTY,
    "function_call": _none_or("none", "auto"),
    "response_format": _none_or({"type": "text"}),
    "modalities": _none_or([], ["text"]),
    "audio": _UNSET,
    "reasoning_effort": _none_or("none"),
    "reasoning": _EMPTY,
    "verbosity": _none_or("medium"),
    "web_search_options": _UNSET,
    "suffix": _EMPTY,
    # Extensions of other engines: sampling
    "logits_processors": _EMPTY,
    "logit_processors": _EMPTY,
    "watermarking": _none_or(False, {}),
    "thinking_token_budget": _UNSET,
    "spaces_between_special_tokens": _none_or(True),
    "typical_p": _ONE,
    "mirostat": _ZERO,
    "dry_multiplier": _ZERO,
    "xtc_probability": _ZERO,
    "stop_regex": _EMPTY,
    # Names that transformers and others have for sampling, lengths and beams
    "do_sample": _none_or(True),
    "num_beams": _ONE,
    "beam_width": _ONE,
    "num_beam_groups": _ONE,
    "diversity_penalty": _ZERO,
    "num_return_sequences": _ONE,
    "min_new_tokens": _ZERO,
    "max_new_tokens": _UNSET,
    "min_length": _ZERO,
    "max_length": _UNSET,
    "n_predict": _none_or(-1),
    "num_predict": _none_or(-1),
    "max_time": _UNSET,
    "stop_strings": _EMPTY,
    "repeat_penalty": _ONE,
    "no_repeat_ngram_size": _ZERO,
    "encoder_repetition_penalty": _ONE,
    "encoder_no_repeat_ngram_size": _ZERO,
    "penalty_alpha": _ZERO,
    "guidance_scale": _ONE,
    "epsilon_cutoff": _ZERO,
    "eta_cutoff": _ZERO,
    "top_a": _ZERO,
    "tfs_z": _ONE,
    "bad_words_ids": _EMPTY,
    "suppress_tokens": _EMPTY,
    "begin_suppress_tokens": _EMPTY,
    "sequence_bias": _EMPTY,
    "force_words": _EMPTY,
    "force_words_ids": _EMPTY,
    "forced_bos_token_id": _UNSET,
    "forced_eos_token_id": _UNSET,
    "exponential_decay_length_penalty": _UNSET,
    # Constraints
    "structured_outputs": _EMPTY,
    "guided_json": _UNSET,
    "guided_regex": _UNSET,
    "guided_choice": _UNSET,
    "guided_grammar": _UNSET,
    "guided_json_object": _OFF,
    "json_schema": _UNSET,
    "grammar": _EMPTY,
    "regex": _UNSET,
    "ebnf": _UNSET,
    # Prompts, adapters, transfer
    "chat_template": _UNSET,
    "prompt_embeds": _UNSET,
    "media_io_kwargs": _EMPTY,
    "mm_processor_kwargs": _EMPTY,
    "lora_path": _UNSET,
    "kv_transfer_params": _EMPTY,
    "ec_transfer_params": _EMPTY,
    "vllm_xargs": _EMPTY,
    # Response extras
    "return_token_offsets": _OFF,
    "return_prompt_text": _OFF,
}

# Refused field -> ours for the same purpose.
INSTEAD: Final[dict[str, str]] = {
    "do_sample": "temperature: 0",
    "num_beams": "use_beam_search and best_of",
    "beam_width": "use_beam_search and best_of",
    "num_return_sequences": "n",
    "min_new_tokens": "min_tokens",
    "max_new_tokens": "max_tokens",
    "min_length": "min_tokens",
    "max_length": "max_tokens",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "max_time": "timeout",
    "stop_strings": "stop",
    "repeat_penalty": "repetition_penalty",
    "bad_words_ids": "bad_words",
    "suppress_tokens": "logit_bias",
}

# Accepted whatever the value: none of these changes a token or a field of the answer.
IGNORED: Final[frozenset[str]] = frozenset(
    [
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prediction",
        "parallel_tool_calls",
        "include_reasoning",
        "separate_reasoning",
        "session_id",
        "stream_interval",
        "guided_decoding_backend",
        "cache_prompt",
    ]
)

# Generation may cut a prompt; here it would be counted whole.
REFUSED_TOKENIZE: Final[dict[str, Predicate]] = {**REFUSED, "truncate_prompt_tokens": _UNSET}

_raw_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def refuse_unsupported(body: bytes, names: frozenset[str], refused: dict[str, Predicate]) -> None:
    """Refuse fields that would change the output; costs nothing when the body names none of them.

    Args:
        body: the body, decoded successfully before.
        names: its top-level fields.
        refused: table of the endpoint.

    Raises:
        InvalidRequestError: code "unsupported_parameter", param the field.
    """
    named = names & refused.keys()
    if not named:
        return
    raw = _raw_decoder.decode(body)
    for name in sorted(named):
        if not _changes_nothing(raw[name], refused[name]):
            instead = f"; use {INSTEAD[name]} instead" if name in INSTEAD else ""
            raise InvalidRequestError(
                f"{name} is not supported with this value{instead}", name, "unsupported_parameter"
            )


def _changes_nothing(raw: msgspec.Raw, changes_nothing: Predicate) -> bool:
    try:
        return changes_nothing(msgspec.json.decode(raw))
    except msgspec.DecodeError:
        # Well-formed, as the decoder of the body has seen, but a number that no type holds: none of ours.
        return False
