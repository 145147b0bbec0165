"""Which missing feature does a refused field belong to? Words for its error message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final


def _named(feature: str, *names: str) -> Iterable[tuple[str, str]]:
    return ((name, feature) for name in names)


# Field -> feature. Fields that are a feature of their own are not here.
FEATURES: Final[dict[str, str]] = dict(
    [
        *_named("tool calling outside of a chat", "tools"),
        *_named("making the model call a tool outside of a chat", "tool_choice"),
        *_named("the deprecated form of tools and tool_choice", "functions", "function_call"),
        *_named("output other than text", "modalities", "audio"),
        *_named("a reasoning effort outside of a chat", "reasoning_effort"),
        *_named("reasoning_effort in an object", "reasoning"),
        *_named("a budget of reasoning outside of a chat", "thinking_token_budget"),
        *_named("web search", "web_search_options"),
        *_named("keeping a conversation between its requests", "thread"),
        *_named("a conversation as an object of its own (use previous_response_id)", "conversation"),
        *_named("prompts kept on the server", "prompt"),
        *_named("filling in between a prompt and a suffix", "suffix"),
        *_named("code of a request's own", "logits_processors", "logit_processors"),
        *_named("a chat template of the request's own", "chat_template"),
        *_named("input other than text", "media_io_kwargs", "mm_processor_kwargs", "prompt_embeds"),
        *_named("adapters named by a request", "lora_path"),
        *_named("handing a request's KV cache on", "kv_transfer_params", "ec_transfer_params"),
    ]
)
