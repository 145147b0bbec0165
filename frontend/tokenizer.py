"""Text to token ids and back over a checkpoint's tokenizer.json, with control tokens kept apart from user text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class TokenText(NamedTuple):
    """How one token reads by itself, as OpenAI's logprobs show it.

    Attributes:
        text: its text; bytes that are no whole UTF-8 characters show as U+FFFD.
        data: the bytes the token stands for, exact.
    """

    text: str
    data: bytes


class Tokenizer:
    """One tokenizer.json; safe to call from several threads.

    Attributes:
        vocab_size: one more than the largest token id the tokenizer can produce.
        special_ids: ids of its special tokens (skip_special_tokens drops their text).
        bos_token, eos_token, pad_token, unk_token: texts named by tokenizer_config.json, or None.
    """

    def __init__(self, directory: str | Path) -> None:
        """Load tokenizer.json and tokenizer_config.json of a checkpoint directory.

        Raises:
            ModelLoadError: tokenizer.json is missing or cannot be read; the message names the file.
        """
        self.vocab_size = 0
        self.special_ids: frozenset[int] = frozenset()
        self.bos_token: str | None = None
        self.eos_token: str | None = None
        self.pad_token: str | None = None
        self.unk_token: str | None = None

    def encode(
        self, text: str, add_special_tokens: bool = True, *, parse_special_tokens: bool = False
    ) -> list[int]:
        """Encode text to token ids.

        Args:
            text: any text; may be empty.
            add_special_tokens: add what the tokenizer's post-processor adds (e.g. BOS).
            parse_special_tokens: read "<|im_end|>" and the like as control tokens. Off, as is right for text that
                others wrote, they are encoded letter by letter.

        Raises:
            InvalidRequestError: the text holds lone surrogates.
        """
        raise NotImplementedError

    async def encode_async(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        parse_special_tokens: bool = False,
        max_model_len: int | None = None,
    ) -> list[int]:
        """Encode without holding up the event loop: long texts are encoded in a thread.

        Args:
            max_model_len: refuse texts over 16 bytes per token of this before any work is done.

        Raises:
            ContextLengthError: the text is too long for the model, whatever its tokens.
            InvalidRequestError: the text holds lone surrogates.
        """
        raise NotImplementedError

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode token ids to text; the same text that streaming them gives. Unknown ids read as nothing."""
        raise NotImplementedError

    def token_text(self, token_id: int) -> TokenText:
        """Return text and bytes of one token by itself; an unknown id has neither."""
        raise NotImplementedError

    def token_name(self, token_id: int) -> str | None:
        """Return the vocabulary's own spelling of a token (e.g. with the "Ġ" of byte-level BPE), None if unknown."""
        raise NotImplementedError

    def token_id(self, token: str) -> int | None:
        """Return the id of a token by its spelling in the vocabulary, None if unknown."""
        raise NotImplementedError
