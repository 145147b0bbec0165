"""One prompt or conversation of a script on its way to token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from operator import index
from typing import NamedTuple, TypedDict, TypeVar, cast

import msgspec

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.offline.outputs import PromptInput
from splitserve.frontend.text.chat.messages import Message, read_conversation, template_messages
from splitserve.frontend.text.chat.options import ChatOptions
from splitserve.frontend.text.grammar.checker import has_grammar
from splitserve.frontend.text.grammar.context import NO_CONTEXT, GrammarContext, reasoning_before
from splitserve.frontend.text.grammar.thinking_budget import FIELD as BUDGET_FIELD
from splitserve.frontend.text.grammar.thinking_budget import budget_of
from splitserve.frontend.text.model_assets import ModelAssets
from splitserve.frontend.text.prompts import Prompt, PromptEncoder
from splitserve.frontend.text.truncation import Truncation, TruncationSide, read_truncation
from splitserve.frontend.unknown_fields import UnknownFields

T = TypeVar("T")

_PROMPT_FORMS = "a text, a list of token ids, {'prompt': text} or {'prompt_token_ids': ids}"


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

    def truncation(
        self, params: SamplingParams, max_model_len: int, side: TruncationSide
    ) -> Truncation | None:
        """Return how a prompt with these parameters is truncated; `side` loses tokens if none was named.

        Raises:
            InvalidRequestError: names the range.
        """
        asked = params.max_tokens or 1
        given = self.truncation_side or side
        return read_truncation(self.truncate_prompt_tokens, given, asked, max_model_len)


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
    """What a job has beside its prompt; `lora` is the name of an adapter, "" for none."""

    params: SamplingParams
    priority: int
    tokenization: Tokenization
    lora: str = ""

    def encoder(
        self, assets: ModelAssets, *, add_special_tokens: bool, side: TruncationSide = "left"
    ) -> PromptEncoder:
        """Return what makes the prompt; `add_special_tokens` and `side` are the defaults."""
        asked = self.tokenization.add_special_tokens
        return PromptEncoder(
            assets,
            add_special_tokens if asked is None else asked,
            self.tokenization.truncation(self.params, assets.max_model_len, side),
            _next_turn,
        )


async def _next_turn() -> None:
    await asyncio.sleep(0)


@dataclass(slots=True, frozen=True)
class PromptJob:
    """One prompt as a script gave it; of_tokens: its tokens' vectors are wanted instead of its own."""

    prompt: PromptInput
    options: JobOptions
    of_tokens: bool = False

    async def encode(self, assets: ModelAssets) -> Prompt:
        """Return the prompt. Raises as PromptEncoder."""
        given = _unwrap(self.prompt)
        encoder = self.options.encoder(assets, add_special_tokens=True)
        if isinstance(given, str):
            return await encoder.encode_text(given, "prompt")
        return await encoder.check_ids(given, "prompt")

    def grammar_context(self, assets: ModelAssets, prompt: Prompt) -> GrammarContext:
        """Return what stands before the answer: nothing, as a prompt is the script's whole text.

        Raises:
            InvalidRequestError: there is a budget for what stands there.
        """
        if self.options.params.thinking_token_budget is not None:
            text = f"{BUDGET_FIELD}: only the answer of a chat has reasoning; use LLM.chat"
            raise InvalidRequestError(text, BUDGET_FIELD, "unsupported_parameter")
        return NO_CONTEXT


@dataclass(slots=True, frozen=True)
class PairJob:
    """Two texts that a model reads as one prompt."""

    first: str
    second: str
    options: JobOptions
    instruction: str | None = None

    async def encode(self, assets: ModelAssets) -> Prompt:
        """Return the prompt. Raises as PromptEncoder."""
        encoder = self.options.encoder(assets, add_special_tokens=True, side="right")
        return await encoder.encode_pair(self.first, self.second, "data_2", self.instruction)

    def grammar_context(self, assets: ModelAssets, prompt: Prompt) -> GrammarContext:
        """Return that nothing is generated."""
        return NO_CONTEXT


@dataclass(slots=True, frozen=True)
class ChatJob:
    """One conversation in the form that templates are given."""

    messages: Sequence[Message]
    options: JobOptions
    template_options: ChatOptions

    async def encode(self, assets: ModelAssets) -> Prompt:
        """Return the rendered conversation. Raises as PromptEncoder."""
        encoder = self.options.encoder(assets, add_special_tokens=False)
        return await encoder.encode_chat(self.messages, self.template_options)

    def grammar_context(self, assets: ModelAssets, prompt: Prompt) -> GrammarContext:
        """Return what stands before the answer: reasoning, if the model writes any.

        Raises:
            InvalidRequestError: there is a budget for it, and the model writes none.
        """
        if not has_grammar(self.options.params):
            return NO_CONTEXT
        num_tokens = self.options.params.thinking_token_budget
        content = self.messages[-1].get("content") if self.template_options.continue_final_message else ""
        continued = content if isinstance(content, str) else ""
        reasoning, tokenizer = assets.answer_formats.reasoning, assets.tokenizer
        if num_tokens is not None:
            budget_of(num_tokens, reasoning, tokenizer, assets.eos_token_ids)
        return GrammarContext("", reasoning_before(reasoning, tokenizer, prompt.token_ids, continued))


def list_prompts(prompts: PromptInput | Sequence[PromptInput]) -> list[PromptInput]:
    """Return the prompts that a script gave, one or many.

    Raises:
        InvalidRequestError: it is neither.
    """
    if isinstance(prompts, str | Mapping):
        return [prompts]
    many = list_items(prompts, "prompts", f"one prompt or a list of them, each {_PROMPT_FORMS}")
    is_one = bool(many) and all(isinstance(item, Integral) for item in many)
    return [cast(list[int], many)] if is_one else cast(list[PromptInput], many)


def read_conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]], unknown: UnknownFields
) -> list[list[Message]]:
    """Return the conversations that a script gave, one or many, in the form that templates are given.

    Args:
        messages: as the script gave them.
        unknown: told of the fields of messages that nobody knows.

    Raises:
        InvalidRequestError: it is neither, or a message is wrong.
    """
    form = "a list of messages ({'role': ..., 'content': ...}), or a list of such lists"
    many = list_items(messages, "messages", form)
    if many and isinstance(many[0], Mapping):
        many = [cast(Sequence[Message], many)]
    conversations = []
    for chat in many:
        items = list_items(cast(Sequence[Message], chat), "messages", form)
        if not all(isinstance(message, Mapping) for message in items):
            raise InvalidRequestError(f"messages must be {form}", "messages")
        conversation, fields = read_conversation(items)
        unknown.check(fields)
        conversations.append(template_messages(conversation))
    return conversations


def list_items(given: Iterable[T], name: str, form: str) -> list[T]:
    """Return the items of an argument that is a list, or something like one.

    Args:
        given: as the script gave it, of any type.
        name: of the argument.
        form: what it has to be, in words.

    Raises:
        InvalidRequestError: names the argument, its form, and the type that was given.
    """
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping):
        return list(given)
    raise InvalidRequestError(f"{name} must be {form}, got {type(given).__name__}", name)


def _unwrap(prompt: PromptInput) -> str | list[int]:
    """Return the text or the token ids of a prompt in any of its forms."""
    value: object = prompt
    if isinstance(prompt, Mapping):
        given = cast(Mapping[str, object], prompt)
        named = [given[key] for key in ("prompt_token_ids", "prompt") if key in given]
        if not named:
            raise InvalidRequestError(
                "a prompt given as a dict needs the key prompt or prompt_token_ids", "prompt"
            )
        value = named[0]
    if isinstance(value, str):
        return value
    try:
        return [index(item) for item in list_items(cast(list[int], value), "a prompt", _PROMPT_FORMS)]
    except TypeError:
        raise InvalidRequestError(f"a prompt must be {_PROMPT_FORMS}", "prompt") from None
