"""Prompts and messages of requests to token ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.http.slices import SliceQueue
from splitserve.frontend.openai.schema.chat import JsonScalar
from splitserve.frontend.openai.schema.completions import MAX_PROMPTS
from splitserve.frontend.text.chat.messages import ChatMessage, template_messages
from splitserve.frontend.text.chat.template import ChatOptions
from splitserve.frontend.text.model_assets import ModelAssets
from splitserve.frontend.text.truncation import Truncation, special_affixes

T = TypeVar("T")

# Looking at a token id takes 50 ns.
_IDS_PER_SLICE = 16384


@dataclass(slots=True, frozen=True)
class Prompt:
    """One prompt as the model sees it; `text` is what the client wrote, None if it sent ids or lost some."""

    token_ids: list[int]
    text: str | None = None


async def encode_prompts(
    prompt: str | list[str | int | list[int]],
    assets: ModelAssets,
    slices: SliceQueue,
    *,
    add_special_tokens: bool,
    truncation: Truncation | None = None,
) -> list[Prompt]:
    """Encode the `prompt` field of a completion.

    Args:
        prompt: the field.
        assets: of the model.
        slices: long lists of token ids are checked in turns of it.
        add_special_tokens: add BOS and the like to texts.
        truncation: of every prompt; None refuses texts that cannot fit the context before any work.

    Raises:
        InvalidRequestError: empty, mixed, too many, or an id outside the vocabulary; param names it.
        ContextLengthError: a text that cannot fit the context.
    """
    encoder = _PromptEncoder(assets, slices, add_special_tokens, truncation)
    if isinstance(prompt, str):
        return [await encoder.encode(prompt, "prompt")]
    kinds: set[type] = set()
    for part in _batches(prompt):
        kinds.update(map(type, part))
        if len(part) == _IDS_PER_SLICE:
            await slices.turn()
    if kinds == {int}:
        return [await encoder.check(prompt, "prompt")]
    if len(kinds) != 1:
        raise InvalidRequestError(
            "prompt: a list must hold texts, token ids or lists of token ids, not several", "prompt"
        )
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequestError(
            f"prompt must hold at most {MAX_PROMPTS} prompts, got {len(prompt)}", "prompt"
        )
    prompts = []
    for i, item in enumerate(prompt):
        if isinstance(item, str):
            prompts.append(await encoder.encode(item, f"prompt[{i}]"))
        elif isinstance(item, list):
            prompts.append(await encoder.check(item, f"prompt[{i}]"))
    return prompts


class _PromptEncoder(NamedTuple):
    """Makes prompts of one request out of texts and token ids."""

    assets: ModelAssets
    slices: SliceQueue
    add_special_tokens: bool
    truncation: Truncation | None

    async def encode(self, text: str, param: str) -> Prompt:
        # Whoever writes a raw prompt writes the template's control tokens too; only chat content is kept
        # apart.
        token_ids = await self.assets.tokenizer.encode_async(
            text,
            self.add_special_tokens,
            parse_special_tokens=True,
            max_model_len=None if self.truncation else self.assets.max_model_len,
        )
        if not token_ids:
            raise InvalidRequestError(f"{param} must hold at least one token", param)
        if self.truncation is None or len(token_ids) <= self.truncation.num_tokens:
            return Prompt(token_ids, text)
        before, after = special_affixes(self.assets.tokenizer) if self.add_special_tokens else ([], [])
        return Prompt(self.truncation.cut(token_ids, len(before), len(after)))

    async def check(self, items: list[str | int | list[int]] | list[int], param: str) -> Prompt:
        token_ids = [item for item in items if isinstance(item, int)]
        if not token_ids:
            raise InvalidRequestError(f"{param} must hold at least one token", param)
        await check_token_ids(token_ids, param, self.assets.vocab_size, self.slices)
        return Prompt(self.truncation.cut(token_ids) if self.truncation else token_ids)


def _batches(items: list[T]) -> Iterator[list[T]]:
    return (items[first : first + _IDS_PER_SLICE] for first in range(0, len(items), _IDS_PER_SLICE))


async def check_token_ids(token_ids: list[int], param: str, vocab_size: int, slices: SliceQueue) -> None:
    """Refuse token ids the model does not have; many of them are looked at in several turns.

    Raises:
        InvalidRequestError: names the range.
    """
    for part in _batches(token_ids):
        if not (min(part) >= 0 and max(part) < vocab_size):
            raise InvalidRequestError(f"{param}: token ids must be from 0 to {vocab_size - 1}", param)
        if len(part) == _IDS_PER_SLICE:
            await slices.turn()


def chat_options(
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    documents: list[dict[str, str]] | None,
    variables: dict[str, JsonScalar] | None,
) -> ChatOptions:
    """Build the template's options from request fields.

    Raises:
        InvalidRequestError: both ways of ending the prompt were asked for.
    """
    if add_generation_prompt and continue_final_message:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt exclude each other", "continue_final_message"
        )
    return ChatOptions(
        add_generation_prompt=not continue_final_message
        if add_generation_prompt is None
        else add_generation_prompt,
        continue_final_message=bool(continue_final_message),
        documents=documents,
        variables=variables,
    )


async def encode_chat(
    messages: list[ChatMessage],
    options: ChatOptions,
    assets: ModelAssets,
    *,
    add_special_tokens: bool,
    truncation: Truncation | None = None,
) -> Prompt:
    """Render and encode a conversation; `truncation` cuts the rendered prompt, whatever stands there.

    Raises:
        InvalidRequestError: a message is wrong, the model has no chat template, or the template refuses.
        ContextLengthError: the text cannot fit the context.
    """
    if assets.chat_template is None:
        raise InvalidRequestError("This model has no chat template; use /v1/completions", "messages")
    rendered = await assets.chat_template.render_async(
        template_messages(messages),
        options,
        max_model_len=None if truncation else assets.max_model_len,
    )
    prefix, suffix = special_affixes(assets.tokenizer) if add_special_tokens else ([], [])
    token_ids = [*prefix, *rendered.token_ids, *suffix]
    if not token_ids:
        raise InvalidRequestError("messages must give at least one token", "messages")
    return Prompt(truncation.cut(token_ids, len(prefix), len(suffix)) if truncation else token_ids)
