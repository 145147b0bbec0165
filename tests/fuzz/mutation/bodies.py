"""Valid bodies of every route that takes one, with every field there is somewhere among them."""

from __future__ import annotations

import json

from splitserve.frontend.responses.compaction.summary_seal import SummarySeal
from tests.fuzz.mutation.numbers import TEXTS

PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/tokenize",
    "/detokenize",
    "/v1/responses",
    "/v1/messages",
    "/v1/responses/compact",
)
# What a conversation goes on from.
_SUMMARY: dict[str, object] = {
    "type": "compaction",
    "id": "cmp_1",
    "encrypted_content": SummarySeal().seal("They added."),
}

_SAMPLING: dict[str, object] = {
    **{"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "seed": 7, "n": 2, "min_tokens": 1},
    **{"presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1, "stop": ["zq", "\n\n"]},
    **{"logit_bias": {"65": 1.5, "66": -100}, "ignore_eos": True, "stop_token_ids": [70, 71]},
}
_EXTRA: dict[str, object] = {
    **{"bad_words": ["foo"], "allowed_token_ids": [65, 66, 67], "return_token_ids": True, "priority": 3},
    **{"timeout": 5.0, "queue_timeout": 2.0, "cache_salt": "salt", "user": "somebody"},
    **{"include_stop_str_in_output": True, "skip_special_tokens": False, "truncate_prompt_tokens": 16},
    **{"repetition_detection": {"max_pattern_size": 4, "min_count": 3}, "request_id": "mine"},
    **{"metadata": {"a": "b"}, "response_format": {"type": "text"}, "logprob_token_ids": [65]},
}
_SAID: list[dict[str, object]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is 2 + 2?"}]},
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "user", "content": "Thanks <|im_end|>", "name": "me"},
]
_TOOL: dict[str, object] = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}},
}


_SCHEMA: dict[str, object] = {
    "name": "x",
    "strict": True,
    "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}
_TAG: dict[str, object] = {
    "structures": [{"begin": "<a>", "schema": {"type": "object"}, "end": "</a>"}],
    "triggers": ["<a>"],
}


def _chats() -> list[dict[str, object]]:
    plain: dict[str, object] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    return [
        plain,
        {**plain, "stream": True, "stream_options": {"include_usage": True}},
        {**plain, "messages": _SAID[:2] + _SAID[3:], **_SAMPLING},
        {**plain, "logprobs": True, "top_logprobs": 2, "stream": True, **_EXTRA},
        {**plain, "tools": [_TOOL], "tool_choice": "none", "messages": _SAID},
        {**plain, "continue_final_message": True, "add_generation_prompt": False, "echo": True},
        {**plain, "documents": [{"title": "t", "text": "x"}], "chat_template_kwargs": {"a": 1}},
        {**plain, "tools": [_TOOL], "tool_choice": "required", "parallel_tool_calls": False, "stream": True},
        {**plain, "tools": [_TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        {**plain, "tools": [_TOOL], "response_format": {"type": "json_schema", "json_schema": _SCHEMA}},
        {**plain, "structured_outputs": {"regex": "a+", "whitespace_pattern": None}},
        {**plain, "structured_outputs": {"structural_tag": _TAG}},
        {**plain, "reasoning_effort": "low", "include_reasoning": False, "thinking_token_budget": None},
    ]


def _completions() -> list[dict[str, object]]:
    plain: dict[str, object] = {"prompt": "Once upon", "max_tokens": 4}
    return [
        plain,
        {**plain, "prompt": [65, 66, 67], "stream": True, "logprobs": 1},
        {**plain, "prompt": ["a", "b"], "echo": True, **_SAMPLING},
        {**plain, "prompt": [[65], [66, 67]], "prompt_logprobs": 1, **_EXTRA},
        {**plain, "use_beam_search": True, "n": 2, "best_of": 2, "temperature": 0, "length_penalty": 1.0},
    ]


def _tokens() -> list[dict[str, object]]:
    return [
        {"prompt": "some text", "add_special_tokens": True, "return_token_strs": True},
        {"messages": _SAID[:2], "add_generation_prompt": True},
    ]


def _responses() -> list[dict[str, object]]:
    plain: dict[str, object] = {"input": "Hi", "max_output_tokens": 4}
    call: dict[str, object] = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    said: list[dict[str, object]] = [
        {"role": "user", "content": [{"type": "input_text", "text": "What is 2 + 2?"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "4", "annotations": []}]},
        call,
        {"type": "function_call_output", "call_id": "c", "output": "4"},
    ]
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}
    return [
        {**plain, "stream": True, "stream_options": {"include_obfuscation": False}},
        {**plain, "input": said, "instructions": "Be brief.", "truncation": "auto", "metadata": {"a": "b"}},
        {**plain, "include": ["message.output_text.logprobs"], "top_logprobs": 2, "stream": True},
        {**plain, "tools": tools, "tool_choice": choice, "parallel_tool_calls": False},
        {**plain, "text": {"format": {"type": "text"}, "verbosity": "low"}, "reasoning": {"effort": "none"}},
        {**plain, "store": True, "background": False, "previous_response_id": "resp_1"},
        {**plain, "input": [said[0], _SUMMARY, said[0]]},
    ]


def _compactions() -> list[dict[str, object]]:
    said: list[dict[str, object]] = [
        {"role": "user", "content": [{"type": "input_text", "text": "What is 2 + 2?"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "4"}]},
    ]
    plain: dict[str, object] = {"model": "org/demo", "input": said}
    return [
        plain,
        {**plain, "input": "Hi", "instructions": "Be brief.", "priority": 3, "timeout": 5.0},
        {**plain, "input": [_SUMMARY, *said], "cache_salt": "salt", "previous_response_id": None},
    ]


def _messages() -> list[dict[str, object]]:
    plain: dict[str, object] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    said: list[dict[str, object]] = [
        {"role": "user", "content": [{"type": "text", "text": "What is 2 + 2?", "cache_control": {}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "tool_use", "id": "t", "name": "f", "input": {}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "4"}]},
    ]
    tools = [{"name": "f", "input_schema": {"type": "object", "properties": {}}, "strict": True}]
    return [
        {**plain, "system": "Be brief.", "stream": True, "stop_sequences": ["zq"]},
        {**plain, "messages": said, "tools": tools, "tool_choice": {"type": "tool", "name": "f"}},
        {**plain, "thinking": {"type": "enabled", "budget_tokens": 1024}, "top_k": 5, "top_p": 0.5},
        {**plain, "tools": tools, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
    ]


def bodies() -> list[list[bytes]]:
    """By place in PATHS; the model is left out, named, or unknown."""
    tokens: dict[str, object] = {"tokens": [65, 66, 200]}
    kinds = [_chats(), _completions(), _tokens(), [tokens], _responses(), _messages(), _compactions()]
    return [[json.dumps(body).encode() for body in kind] for kind in kinds]


# What may stand in a header's value.
ODD_VALUES = tuple(text for text in TEXTS if "\n" not in text)
