"""Token logprobs in OpenAI's three shapes: chat entries, completion columns, prompt maps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import msgspec

from splitserve.frontend.engines.generation import TokenLogprob
from splitserve.frontend.http.response.json_pieces import JsonPieces
from splitserve.frontend.text.tokenizer import Tokenizer, TokenText

# JSON has no infinity; OpenAI writes this for "never".
MIN_LOGPROB = -9999.0


class TopLogprob(msgspec.Struct, frozen=True):
    """One alternative."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(msgspec.Struct, frozen=True):
    """One generated token; `bytes` are exact where `token` shows U+FFFD for part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Logprobs of a chat choice."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class PromptLogprob(msgspec.Struct, frozen=True):
    """One candidate at a position of the prompt."""

    logprob: float
    rank: int | None
    decoded_token: str


# Per prompt token: candidates by token id; null for the first token.
PromptLogprobs = list[dict[str, PromptLogprob] | None]


class TokenTexts(Protocol):
    """Knows how a token reads by itself."""

    def token_text(self, token_id: int) -> TokenText:
        """Return its text and its bytes."""
        ...


class TokenIdTexts:
    """Reads every token as "token_id:123", for clients that tell tokens apart which read the same."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def token_text(self, token_id: int) -> TokenText:
        """Return the id as text, and the bytes that the token stands for."""
        return TokenText(f"token_id:{token_id}", self._tokenizer.token_text(token_id).data)


def token_texts(tokenizer: Tokenizer, *, as_token_ids: bool | None) -> TokenTexts:
    """Return how the tokens of logprobs read in one request's answer."""
    return TokenIdTexts(tokenizer) if as_token_ids else tokenizer


def clamp(logprob: float) -> float:
    """Return a logprob that JSON can carry; NaN counts as never."""
    return logprob if logprob >= MIN_LOGPROB else MIN_LOGPROB


def values_per_token(num_top: int, num_asked: int = 0) -> int:
    """Return what the logprobs of one token count, in values: two, and one for each alternative."""
    return 2 + num_top + num_asked


def chat_entries(
    pieces: JsonPieces, texts: TokenTexts, entries: Iterable[TokenLogprob], num_entries: int, num_top: int
) -> list[ChatTokenLogprob]:
    """Convert the logprobs of new tokens for chat; with num_top alternatives each."""
    shown = (_chat_entry(texts, entry) for entry in entries)
    return pieces.long_list(shown, num_entries, values_per_token(num_top))


def _chat_entry(texts: TokenTexts, entry: TokenLogprob) -> ChatTokenLogprob:
    token = texts.token_text(entry.token_id)
    top = []
    for token_id, logprob in entry.others:
        text = texts.token_text(token_id)
        top.append(TopLogprob(text.text, clamp(logprob), list(text.data)))
    return ChatTokenLogprob(token.text, clamp(entry.logprob), list(token.data), top)


def completion_name(token: TokenText) -> str:
    """Name a token in completion logprobs: its text, or its bytes where it is no whole text."""
    if "\ufffd" not in token.text or token.text.encode() == token.data:
        return token.text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.data)


def top_by_name(texts: TokenTexts, entry: TokenLogprob) -> dict[str, float]:
    """Map alternatives, ids asked for and the token to logprobs; of equal names the likelier stays."""
    names: dict[str, float] = {}
    for token_id, logprob in (*entry.others, (entry.token_id, entry.logprob)):
        name = completion_name(texts.token_text(token_id))
        names[name] = max(clamp(logprob), names.get(name, MIN_LOGPROB))
    return names


def with_top(entries: Iterable[TokenLogprob | None], num_top: int) -> Iterator[TokenLogprob | None]:
    """Yield the entries with at most so many alternatives each."""
    return (entry and replace(entry, top=entry.top[:num_top]) for entry in entries)


def prompt_maps(
    pieces: JsonPieces, tokenizer: Tokenizer, entries: Sequence[TokenLogprob | None], num_top: int
) -> PromptLogprobs:
    """Convert the logprobs of a prompt; with at most num_top alternatives each."""
    maps = (None if entry is None else _prompt_map(tokenizer, entry) for entry in with_top(entries, num_top))
    return pieces.long_list(maps, len(entries), values_per_token(num_top))


def _prompt_map(tokenizer: Tokenizer, entry: TokenLogprob) -> dict[str, PromptLogprob]:
    def named(token_id: int, logprob: float, rank: int | None) -> PromptLogprob:
        return PromptLogprob(clamp(logprob), rank, tokenizer.token_text(token_id).text)

    found = {
        str(token_id): named(token_id, logprob, rank)
        for rank, (token_id, logprob) in enumerate(entry.top, start=1)
    }
    found[str(entry.token_id)] = named(entry.token_id, entry.logprob, entry.rank)
    return found
