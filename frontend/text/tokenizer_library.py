"""The tokenizers library behind one door: whatever it does wrong becomes an error of ours.

It is written in Rust, and where that panics (a regular expression that backtracks for too long, a position
inside a character) Python gets a PanicException. That derives from BaseException, so no ordinary `except`
sees it, and one text of a client would end a whole task. The object can be used afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as RawTokenizer

from splitserve.engine_core.errors import InvalidRequestError

_MAX_WORDS = 300


class TokenizerFailedError(InvalidRequestError):
    """The library gave up on this input; the message has its words."""


@contextlib.contextmanager
def _guard(what: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            words = str(error)[:_MAX_WORDS]
            raise TokenizerFailedError(f"the tokenizer failed on the {what}: {words}") from None
        raise


class LibraryTokenizer:
    """A tokenizer of the library; every method but the look-ups of single tokens raises TokenizerFailedError.

    For any thread; what runs long gives up the interpreter's lock.
    """

    def __init__(self, description: bytes) -> None:
        """Read the bytes of a tokenizer.json."""
        with _guard("file"):
            self._raw = RawTokenizer.from_buffer(description)
            self._raw.no_truncation()
            self._raw.no_padding()

    def added_tokens(self) -> dict[int, AddedToken]:
        """Return the added tokens by id."""
        with _guard("added tokens"):
            tokens: dict[int, AddedToken] = self._raw.get_added_tokens_decoder()
            return tokens

    def vocab(self) -> dict[str, int]:
        """Return the ids of all tokens, added ones included."""
        with _guard("vocabulary"):
            vocab: dict[str, int] = self._raw.get_vocab()
            return vocab

    def add_tokens(self, tokens: Sequence[str | AddedToken], *, special: bool = False) -> None:
        """Add tokens behind the others, or change what is known of those that are there."""
        with _guard("added tokens"):
            add = self._raw.add_special_tokens if special else self._raw.add_tokens
            add(list(tokens))

    def read_special_tokens_as_text(self) -> None:
        """Read special tokens as letters from now on."""
        self._raw.encode_special_tokens = True

    def encode(self, text: str) -> Encoding:
        """Encode a text without special tokens."""
        with _guard("text"):
            # Unlike this one, the library's encode() keeps the interpreter lock and tracks offsets.
            return self._raw.encode_batch_fast([text], add_special_tokens=False)[0]

    def add_special_tokens_to(self, encoding: Encoding) -> list[int]:
        """Return the ids of an encoding with what the post-processor adds."""
        with _guard("text"):
            token_ids: list[int] = self._raw.post_process(encoding).ids
            return token_ids

    def join(self, first: Encoding, second: Encoding, add_special_tokens: bool) -> Encoding:
        """Return the encoding of two texts as the post-processor puts them together."""
        with _guard("pair of texts"):
            return self._raw.post_process(first, second, add_special_tokens)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode ids, special tokens included."""
        with _guard("token ids"):
            text: str = self._raw.decode(list(token_ids), skip_special_tokens=False)
            return text

    def id_to_token(self, token_id: int) -> str | None:
        """Return the spelling of a token, None if there is none."""
        spelling: str | None = self._raw.id_to_token(token_id)
        return spelling

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token by its spelling, None if there is none."""
        token_id: int | None = self._raw.token_to_id(token)
        return token_id
