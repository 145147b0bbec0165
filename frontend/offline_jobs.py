"""One prompt or conversation of a script on its way to token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict, cast

import msgspec

from engine_core.errors import InvalidRequestError
from engine_core.sampling_params import SamplingParams
from frontend.chat_template import ChatOptions, Message
from frontend.offline_outputs import Prompt, TextPrompt, TokensPrompt
from frontend.pool_status import ServedModel
from frontend.truncation import Truncation, TruncationSide, read_truncation, special_affixes


class TokenizationKwargs(TypedDict, total=False):
    """How prompts become tokens, as far as a script may say: the fields of the HTTP API."""

    truncate_prompt_tokens: int | None
    truncation_side: TruncationSide | None
    add_special_tokens: bool | None


class Tokenization(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TokenizationKwargs, checked."""

    truncate_prompt_tokens: int | None = None
    truncation_side: TruncationSide | None = None
    add_special_tokens: bool | None = None

    def truncation(self, params: SamplingParams, max_model_len: int) -> Truncation | None:
        """Return how a prompt with these parameters is truncated.

        Raises:
            InvalidRequestError: names the range.
        """
        asked = params.max_tokens or 1
        return read_truncation(self.truncate_prompt_tokens, self.truncation_side, asked, max_model_len)


def check_tokenization(given: TokenizationKwargs | None) -> Tokenization:
    """Check names and types.

    Raises:
        InvalidRequestError: names what is wrong.
    """
    try:
        return msgspec.convert(given or {}, Tokenization)
    except msgspec.ValidationError as error:
        known = ", ".join(Tokenization.__struct_fields__)
        text = f"tokenization_kwargs: {str(error).replace('`', '')}; it takes {known}"
        raise InvalidRequestError(text, "tokenization_kwargs") from None


class JobOptions(NamedTuple):
    """What a job has beside its prompt."""

    params: SamplingParams
    priority: int
    tokenization: Tokenization


@dataclass(slots=True, frozen=True)
class PromptJob:
    """One prompt as a script gave it."""

    prompt: Prompt
    options: JobOptions

    async def encode(self, served: ServedModel) -> tuple[str | None, list[int]]:
        """Return the prompt as text, if it is one and nothing was cut off, and as ids."""
        prompt = self.prompt
        if isinstance(prompt, dict):
            prompt = _unwrap(prompt)
        tokenizer, limit = served.assets.tokenizer, served.info.max_model_len
        truncation = self.options.tokenization.truncation(self.options.params, limit)
        if not isinstance(prompt, str):
            return None, truncation.cut(list(prompt)) if truncation else list(prompt)
        add_special_tokens = self.options.tokenization.add_special_tokens is not False
        ids = await tokenizer.encode_async(
            prompt,
            add_special_tokens,
            parse_special_tokens=True,
            max_model_len=None if truncation else limit,
        )
        if truncation is None or len(ids) <= truncation.num_tokens:
            return prompt, ids
        before, after = special_affixes(tokenizer) if add_special_tokens else ([], [])
        return None, truncation.cut(ids, len(before), len(after))


@dataclass(slots=True, frozen=True)
class ChatJob:
    """One conversation as a script gave it."""

    messages: Sequence[Message]
    options: JobOptions
    template_options: ChatOptions

    async def encode(self, served: ServedModel) -> tuple[str | None, list[int]]:
        """Return the rendered conversation as text, if nothing was cut off, and as ids."""
        template = served.assets.chat_template
        if template is None:
            raise InvalidRequestError("the model has no chat template", "messages")
        limit = served.info.max_model_len
        tokenization = self.options.tokenization
        truncation = tokenization.truncation(self.options.params, limit)
        text, ids = await template.render_async(
            self.messages, self.template_options, max_model_len=None if truncation else limit
        )
        before, after = (
            special_affixes(served.assets.tokenizer) if tokenization.add_special_tokens else ([], [])
        )
        ids = [*before, *ids, *after]
        if truncation is None or len(ids) <= truncation.num_tokens:
            return text, ids
        return None, truncation.cut(ids, len(before), len(after))


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
