"""How does a text become exactly so many tokens, and how many tokens has a text?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from splitserve.client.target.own_server import DEMO_NAME
from splitserve.engine_core.errors import ConfigError, SplitServeError

IntColumn = npt.NDArray[np.int64]
MAX_TRIES = 20
MAX_LOOKED_AT = 10_000
WORDS = ("time", "year", "people", "way", "day", "thing", "world", "life", "hand", "part", "child", "eye")


class TokenTexts(Protocol):
    """Makes and measures texts."""

    def make(self, num_tokens: int, rng: np.random.Generator) -> str:
        """Return a random text of so many tokens."""

    def extend(self, text: str, num_tokens: int, rng: np.random.Generator) -> str:
        """Return a text that begins with another and has so many tokens."""

    def count(self, text: str) -> int:
        """Return the number of tokens of a text, without those that a server adds; 0 if it is not known."""


class TokenizerTexts:
    """Texts of the tokens of a tokenizer.

    Args:
        tokenizer: of the model, or of one whose tokens are to be counted.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._ids = _stable_ids(tokenizer)

    def make(self, num_tokens: int, rng: np.random.Generator) -> str:
        """Return a random text of so many tokens."""
        return self._fit([], num_tokens, rng)

    def extend(self, text: str, num_tokens: int, rng: np.random.Generator) -> str:
        """Return a text that begins with the tokens of another and has so many."""
        return self._fit(self._encode(text), num_tokens, rng)

    def count(self, text: str) -> int:
        """Return the number of tokens of a text, without those that a server adds."""
        return len(self._encode(text))

    def _fit(self, ids: Sequence[int], num_tokens: int, rng: np.random.Generator) -> str:
        """Add or cut tokens until the text, encoded again, has so many; the nearest found if none does."""
        text, best_off = "", num_tokens + 1
        for num_tries in range(MAX_TRIES):
            # From the second time on the end is drawn anew: cut anywhere, it could grow back.
            kept = max(0, min(len(ids), num_tokens - num_tries))
            ids = [*ids[:kept], *rng.choice(self._ids, num_tokens - kept).tolist()]
            made = self._tokenizer.decode(ids, skip_special_tokens=False)
            # Tokens next to each other may become one, and parts of characters others.
            ids = self._encode(made)
            off = abs(len(ids) - num_tokens)
            if off < best_off:
                text, best_off = made, off
            if off == 0:
                break
        return text

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


class WordTexts:
    """Texts of common words, for servers whose tokenizer is not at hand: a word is about a token."""

    def make(self, num_tokens: int, rng: np.random.Generator) -> str:
        """Return so many random words."""
        return " ".join(rng.choice(WORDS, num_tokens).tolist())

    def extend(self, text: str, num_tokens: int, rng: np.random.Generator) -> str:
        """Return a text that begins with another and has so many words."""
        words = text.split()
        return " ".join([*words, self.make(max(0, num_tokens - len(words)), rng)]).strip()

    def count(self, text: str) -> int:
        """Return 0: it is not known."""
        return 0


def _stable_ids(tokenizer: Tokenizer) -> IntColumn:
    """Return tokens whose text, encoded again, is the same token: most that are no part of a character."""
    special = {int(each) for each in tokenizer.get_added_tokens_decoder()}
    size = tokenizer.get_vocab_size(with_added_tokens=False)
    ids = [i for i in range(0, size, 1 + size // MAX_LOOKED_AT) if i not in special]
    texts = tokenizer.decode_batch([[i] for i in ids], skip_special_tokens=False)
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    stable = [i for i, each in zip(ids, encoded, strict=True) if each.ids == [i]]
    return np.array(stable or ids)


def load_tokenizer(name: str) -> Tokenizer:
    """Return the tokenizer of a checkpoint, a tokenizer.json, or a model of the hub.

    Raises:
        ConfigError: there is none.
    """
    from splitserve.engine_core.checkpoint.source import resolve_model
    from splitserve.engine_core.checkpoint.text_files import read_tokenizer_json

    try:
        name = "" if name == DEMO_NAME else name
        path = Path(name).expanduser()
        if path.is_file() and path.suffix != ".gguf":
            return Tokenizer.from_file(str(path))
        return Tokenizer.from_buffer(read_tokenizer_json(resolve_model(name)))
    # The tokenizers library raises plain exceptions.
    except (SplitServeError, Exception) as error:
        raise ConfigError(
            f"no tokenizer at {name!r} ({error}): name one with --tokenizer, or count words with "
            "--skip-tokenizer-init"
        ) from None
