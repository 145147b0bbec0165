"""Known fields that are not served: those that change the output get 400, the harmless are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.openai.schema.missing_features import FEATURES
from splitserve.frontend.typed_json.unknown import IsKnown


class Accepted:
    """The values with which a field changes nothing; null is always one of them."""

    def __init__(self, *values: object) -> None:
        self._values = (None, *values)

    def holds(self, given: object) -> bool:
        """Tell whether a value is one of them; by type, as 1 == True would let a number pass for a switch."""
        return any(given == value and type(given) is type(value) for value in self._values)

    def __str__(self) -> str:
        """Return them as JSON, in words."""
        # 1 and 1.0 are one value to read.
        shown = [msgspec.json.encode(value).decode().removesuffix(".0") for value in self._values]
        *others, last = dict.fromkeys(shown)
        return f"{', '.join(others)} or {last}" if others else last


_UNSET = Accepted()
_EMPTY = Accepted([], {}, "")
_OFF = Accepted(False)
_ZERO = Accepted(0, 0.0)
_ONE = Accepted(1, 1.0)

# Field -> which values change nothing and are therefore accepted.
REFUSED: Final[dict[str, Accepted]] = {
    # OpenAI
    "tools": _EMPTY,
    "tool_choice": Accepted("none", "auto"),
    "functions": _EMPTY,
    "function_call": Accepted("none", "auto"),
    "modalities": Accepted([], ["text"]),
    "audio": _UNSET,
    "reasoning_effort": Accepted("none"),
    "reasoning": _EMPTY,
    "verbosity": Accepted("medium"),
    "web_search_options": _UNSET,
    "suffix": _EMPTY,
    # Extensions of other engines: sampling
    "logits_processors": _EMPTY,
    "logit_processors": _EMPTY,
    "watermarking": Accepted(False, {}),
    "thinking_token_budget": _UNSET,
    "spaces_between_special_tokens": Accepted(True),
    "typical_p": _ONE,
    "mirostat": _ZERO,
    "dry_multiplier": _ZERO,
    "xtc_probability": _ZERO,
    "stop_regex": _EMPTY,
    # Names that transformers and others have for sampling, lengths and beams
    "do_sample": Accepted(True),
    "num_beams": _ONE,
    "beam_width": _ONE,
    "num_beam_groups": _ONE,
    "diversity_penalty": _ZERO,
    "num_return_sequences": _ONE,
    "min_new_tokens": _ZERO,
    "max_new_tokens": _UNSET,
    "min_length": _ZERO,
    "max_length": _UNSET,
    "n_predict": Accepted(-1),
    "num_predict": Accepted(-1),
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
    "guided_json": _UNSET,
    "guided_regex": _UNSET,
    "guided_choice": _UNSET,
    "guided_grammar": _UNSET,
    "guided_json_object": _OFF,
    "guided_whitespace_pattern": _UNSET,
    "structural_tag": _UNSET,
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
    "mm_payload": _EMPTY,
    # Response extras
    "return_token_offsets": _OFF,
    "return_prompt_text": _OFF,
    "return_weight_versions": _OFF,
    "routed_experts_prompt_start": _ZERO,
}

# Only a chat has tools, and a template that is told how to think.
_OF_CHAT: Final = ("tools", "tool_choice", "reasoning_effort", "thinking_token_budget")
REFUSED_CHAT: Final[dict[str, Accepted]] = {
    name: accepted for name, accepted in REFUSED.items() if name not in _OF_CHAT
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
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
    "guided_json_object": "structured_outputs.json_object",
    "guided_whitespace_pattern": "structured_outputs.whitespace_pattern",
    "structural_tag": "structured_outputs.structural_tag",
    "json_schema": "structured_outputs.json",
    "grammar": "structured_outputs.grammar",
    "regex": "structured_outputs.regex",
    "ebnf": "structured_outputs.grammar",
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
        "response_format",
        "structured_outputs",
        "separate_reasoning",
        "session_id",
        "stream_interval",
        "return_mm_kwargs",
        "guided_decoding_backend",
        "cache_prompt",
    ]
)

# The same inside a body: equal prefixes are cached by themselves, streams are not padded, and LiteLLM adds to
# answers that it sends back what was beside OpenAI's fields.
_IGNORED_INSIDE: Final[frozenset[str]] = frozenset(
    [
        "stream_options.include_obfuscation",
        "messages[].provider_specific_fields",
        *(f"{place}.cache_control" for place in ("messages[]", "messages[].content[]", "tools[]")),
        *(f"{place}.prompt_cache_breakpoint" for place in ("messages[]", "messages[].content[]")),
    ]
)

# Fields inside a body with the values that say nothing: clients send answers back as messages.
IGNORED_INSIDE: Final[dict[str, Accepted]] = {
    "messages[].annotations": _EMPTY,
    "messages[].audio": _UNSET,
    "messages[].function_call": _UNSET,
}

# Generation may cut a prompt, or show no tools; here all would be counted.
REFUSED_TOKENIZE: Final[dict[str, Accepted]] = {
    **REFUSED_CHAT,
    "tool_choice": REFUSED["tool_choice"],
    "truncate_prompt_tokens": _UNSET,
}


def refuse_unsupported(fields: Mapping[str, object], refused: Mapping[str, Accepted]) -> None:
    """Refuse fields that would change the output; costs nothing when the body names none of them.

    Args:
        fields: of the body, by name.
        refused: table of the endpoint.

    Raises:
        InvalidRequestError: code "unsupported_parameter", param the field.
    """
    for name in sorted(fields.keys() & refused.keys()):
        if not refused[name].holds(fields[name]):
            raise InvalidRequestError(_words(name, refused[name]), name, "unsupported_parameter")


def known_beside(refused: Mapping[str, Accepted]) -> IsKnown:
    """Return what tells whether a field without a place in the body's type is named by a table here."""
    names = IGNORED | _IGNORED_INSIDE | refused.keys()

    def is_known(pattern: str, value: object) -> bool:
        return pattern in names or (pattern in IGNORED_INSIDE and IGNORED_INSIDE[pattern].holds(value))

    return is_known


def _words(name: str, accepted: Accepted) -> str:
    if name in INSTEAD:
        return f"{name} is not supported, use {INSTEAD[name]} instead; it may only be {accepted}"
    missing = f"{FEATURES[name]} is not supported yet" if name in FEATURES else "it is not supported"
    return f"{name}: {missing}; it may only be {accepted}"
