"""One prompt or conversation of a script on its way to token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from engine_core.errors import InvalidRequestError
from engine_core.sampling_params import SamplingParams
from frontend.chat_template import ChatOptions, Message
from frontend.offline_outputs import Prompt, TextPrompt, TokensPrompt
from frontend.pool_status import ServedModel


@dataclass(slots=True, frozen=True)
class PromptJob:
    """One prompt as a script gave it."""

    prompt: Prompt
    params: SamplingParams

    async def encode(self, served: ServedModel) -> tuple[str | None, list[int]]:
        """Return the prompt as text, if it is one, and as ids."""
        prompt = self.prompt
        if isinstance(prompt, dict):
            prompt = _unwrap(prompt)
        if not isinstance(prompt, str):
            return None, list(prompt)
        ids = await served.assets.tokenizer.encode_async(
            prompt, parse_special_tokens=True, max_model_len=served.info.max_model_len
        )
        return prompt, ids


@dataclass(slots=True, frozen=True)
class ChatJob:
    """One conversation as a script gave it."""

    messages: Sequence[Message]
    params: SamplingParams
    options: ChatOptions

    async def encode(self, served: ServedModel) -> tuple[str | None, list[int]]:
        """Return the rendered conversation as text and as ids."""
        template = served.assets.chat_template
        if template is None:
            raise InvalidRequestError("the model has no chat template", "messages")
        limit = served.info.max_model_len
        return await template.render_async(self.messages, self.options, max_model_len=limit)


def _unwrap(prompt: TextPrompt | TokensPrompt) -> str | list[int]:
    value = cast(Mapping[str, str | list[int]], prompt)
    for key in ("prompt_token_ids", "prompt"):
        if key in value:
            return value[key]
    raise InvalidRequestError("a prompt given as a dict needs the key prompt or prompt_token_ids", "prompt")


def is_one_prompt(prompts: Prompt | Sequence[Prompt]) -> bool:
    """Tell one prompt from a list of them."""
    if isinstance(prompts, str | Mapping):
        return True
    return bool(prompts) and all(isinstance(item, int) for item in prompts)
