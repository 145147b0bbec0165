"""Reads the prompt fields of request bodies for the prompt encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.openai.schema.completions import MAX_PROMPTS
from splitserve.frontend.text.chat.control_tokens import JsonValue
from splitserve.frontend.text.chat.options import ChatOptions
from splitserve.frontend.text.prompts import Prompt, PromptEncoder, slices_of

# Encoding takes 0.2 to 1 us per character.
_CHARS_PER_TURN = 4096


async def encode_prompts(
    prompt: str | list[str | int | list[int]],
    encoder: PromptEncoder,
    field: str = "prompt",
    max_prompts: int = MAX_PROMPTS,
) -> list[Prompt]:
    """Encode the `prompt` field of a completion, or one like it.

    Args:
        prompt: as it came.
        encoder: of the model.
        field: its name.
        max_prompts: most of them.

    Raises:
        InvalidRequestError: empty, mixed, too many, or an id outside the vocabulary; param names it.
        ContextLengthError: a text that cannot fit the context.
    """
    if isinstance(prompt, str):
        return [await encoder.encode_text(prompt, field)]
    kinds: set[type] = set()
    for part in slices_of(prompt):
        kinds.update(map(type, part))
        if len(part) < len(prompt):
            await encoder.turn()
    if kinds == {int}:
        return [await encoder.check_ids(cast(list[int], prompt), field)]
    if len(kinds) != 1:
        raise InvalidRequestError(
            f"{field}: a list must contain only texts, only token ids or only lists of token ids", field
        )
    if len(prompt) > max_prompts:
        raise InvalidRequestError(
            f"{field} must contain at most {max_prompts} {field}s, got {len(prompt)}", field
        )
    prompts, num_since_turn = [], 0
    for i, item in enumerate(prompt):
        if isinstance(item, str):
            prompts.append(await encoder.encode_text(item, f"{field}[{i}]"))
            num_since_turn += len(item)
        elif isinstance(item, list):
            prompts.append(await encoder.check_ids(item, f"{field}[{i}]"))
            num_since_turn += len(item)
        # Many short texts take as long as a long one, which would be encoded elsewhere.
        if num_since_turn > _CHARS_PER_TURN:
            num_since_turn = 0
            await encoder.turn()
    return prompts


async def encode_pairs(
    pairs: Sequence[tuple[str, str]], encoder: PromptEncoder, field: str, instruction: str | None = None
) -> list[Prompt]:
    """Encode pairs of texts, each as one prompt.

    Args:
        pairs: first and second texts.
        encoder: of the model.
        field: name of that of the second texts.
        instruction: see PromptEncoder.encode_pair.

    Raises:
        InvalidRequestError, ContextLengthError: as PromptEncoder.encode_pair.
    """
    prompts, num_since_turn = [], 0
    for i, (first, second) in enumerate(pairs):
        prompts.append(await encoder.encode_pair(first, second, f"{field}[{i}]", instruction))
        num_since_turn += len(first) + len(second)
        if num_since_turn > _CHARS_PER_TURN:
            num_since_turn = 0
            await encoder.turn()
    return prompts


def chat_options(
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    documents: list[dict[str, str]] | None,
    variables: Mapping[str, JsonValue] | None,
) -> ChatOptions:
    """Build the template's options from request fields.

    Raises:
        InvalidRequestError: both ways of ending the prompt were asked for.
    """
    if add_generation_prompt and continue_final_message:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt cannot both be true", "continue_final_message"
        )
    return ChatOptions(
        add_generation_prompt=not continue_final_message
        if add_generation_prompt is None
        else add_generation_prompt,
        continue_final_message=bool(continue_final_message),
        documents=documents,
        variables=variables,
    )
