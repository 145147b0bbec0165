"""Texts, token ids and conversations to prompts of a model: encoded, checked and cut in one place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.text.chat.messages import Message
from splitserve.frontend.text.chat.options import ChatOptions
from splitserve.frontend.text.model_assets import ModelAssets
from splitserve.frontend.text.tokenizer import Tokenizer, check_text_length
from splitserve.frontend.text.truncation import Truncation

T = TypeVar("T")

# Looking at a token id takes 50 ns.
_IDS_PER_SLICE = 16384
_MAX_SHOWN_DIGITS = 20


@dataclass(slots=True, frozen=True)
class Prompt:
    """One prompt as the model sees it.

    Attributes:
        token_ids: of it.
        text: what it was made of; None if ids were, or two texts, or some of it was lost.
        second_at: index of the first token of the second of two texts; 0 if it is one.
    """

    token_ids: list[int]
    text: str | None = None
    second_at: int = 0


class PromptEncoder(NamedTuple):
    """Makes the prompts of one request.

    Attributes:
        assets: of the model.
        add_special_tokens: put BOS and the like around texts, and around rendered conversations.
        truncation: of every prompt; None refuses texts that cannot fit the context before any work.
        turn: awaited between the slices of long lists of token ids.
    """

    assets: ModelAssets
    add_special_tokens: bool
    truncation: Truncation | None
    turn: Callable[[], Awaitable[None]]

    async def encode_text(self, text: str, param: str) -> Prompt:
        """Encode a text; control tokens in it are read as such, as who writes a raw prompt writes them too.

        Args:
            text: the prompt.
            param: its path in the request, for errors.

        Raises:
            InvalidRequestError: it has no token.
            ContextLengthError: it cannot fit the context.
        """
        if self.truncation is None:
            check_text_length(text, self.assets.max_model_len, param)
        token_ids = await self.assets.tokenizer.encode_async(
            text, self.add_special_tokens, parse_special_tokens=True
        )
        return self._cut(token_ids, text, param)

    async def encode_pair(
        self, first: str, second: str, param: str, instruction: str | None = None
    ) -> Prompt:
        """Encode two texts as one prompt, as encode_text() does with one.

        Args:
            first: such as a query.
            second: such as a document.
            param: its path in the request, for errors.
            instruction: of a model that is told what to judge by; None for its own.

        Raises:
            InvalidRequestError, ContextLengthError: as encode_text(), or the model is told nothing.
        """
        if self.assets.pair_template is not None:
            pair = (first, second, instruction, self.truncation, self.assets.max_model_len)
            return Prompt(await self.assets.pair_template.encode(*pair))
        if instruction is not None:
            raise InvalidRequestError("instruction: the model takes none", "instruction")
        if self.truncation is None:
            for text in (first, second):
                check_text_length(text, self.assets.max_model_len, param)
        token_ids, second_at = await self.assets.tokenizer.encode_pair_async(
            first, second, self.add_special_tokens, self.truncation
        )
        _check_any(token_ids, "contain", param)
        return Prompt(token_ids, second_at=second_at)

    async def check_ids(self, token_ids: list[int], param: str) -> Prompt:
        """Check a prompt of token ids.

        Raises:
            InvalidRequestError: there is none, or one is outside the vocabulary.
        """
        await check_token_ids(token_ids, param, self.assets.vocab_size, self.turn)
        _check_any(token_ids, "contain", param)
        return Prompt(self.truncation.cut(token_ids) if self.truncation else token_ids)

    async def encode_chat(self, messages: Sequence[Message], options: ChatOptions) -> Prompt:
        """Render and encode a conversation; what is cut is cut of the rendered prompt, whatever stands there.

        Args:
            messages: as frontend.text.chat.messages gives them.
            options: for the template.

        Raises:
            InvalidRequestError: the model has no chat template, or the template refuses or fails, or it does
                not show the tools that there are.
            ContextLengthError: the text cannot fit the context.
        """
        if self.assets.chat_template is None:
            raise InvalidRequestError(
                "This model has no chat template; use /v1/completions or LLM.generate, or start the server "
                "with --chat-template",
                "messages",
            )
        if options.tools and not self.assets.chat_template.shows_tools(options):
            raise InvalidRequestError(
                "tools: the model's chat template knows no tools", "tools", "unsupported_parameter"
            )
        rendered = await self.assets.chat_template.render_async(
            messages, options, max_model_len=None if self.truncation else self.assets.max_model_len
        )
        before, after = self._affixes()
        return self._cut([*before, *rendered.token_ids, *after], rendered.text, "messages")

    def _cut(self, token_ids: list[int], text: str, param: str) -> Prompt:
        _check_any(token_ids, "produce" if param == "messages" else "contain", param)
        if self.truncation is None or len(token_ids) <= self.truncation.num_tokens:
            return Prompt(token_ids, text)
        before, after = self._affixes()
        return Prompt(self.truncation.cut(token_ids, len(before), len(after)))

    def _affixes(self) -> tuple[list[int], list[int]]:
        return special_affixes(self.assets.tokenizer) if self.add_special_tokens else ([], [])


def special_affixes(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return what the tokenizer puts before and after a text, found by encoding one with and without."""
    plain, full = tokenizer.encode("a", False), tokenizer.encode("a", True)
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return full[:start], full[start + len(plain) :]
    return [], []


def _check_any(token_ids: list[int], verb: str, param: str) -> None:
    if not token_ids:
        raise InvalidRequestError(f"{param} must {verb} at least one token", param)


def slices_of(items: list[T]) -> Iterator[list[T]]:
    """Return a long list in parts that take a millisecond to look at."""
    return (items[first : first + _IDS_PER_SLICE] for first in range(0, len(items), _IDS_PER_SLICE))


async def check_token_ids(
    token_ids: list[int], param: str, vocab_size: int, turn: Callable[[], Awaitable[None]]
) -> None:
    """Refuse token ids the model does not have; between the slices of many, `turn` is awaited.

    Raises:
        InvalidRequestError: names the range and an id.
    """
    for part in slices_of(token_ids):
        for token_id in (min(part), max(part)):
            if not 0 <= token_id < vocab_size:
                raise InvalidRequestError(
                    f"{param}: token ids must be from 0 to {vocab_size - 1}, "
                    f"got {str(token_id)[:_MAX_SHOWN_DIGITS]}",
                    param,
                )
        if len(part) == _IDS_PER_SLICE:
            await turn()
