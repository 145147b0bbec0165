"""Which prompts does a scenario send? Random ones, never the same twice, so that no prefix cache helps."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer

# Ids below are control tokens and bytes in many vocabularies.
FIRST_TOKEN_ID = 300


class PromptSource:
    """Draws prompts for one model.

    Args:
        model: folder of the checkpoint.
        seed: of all prompts; take a new one for each run.
    """

    def __init__(self, model: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        vocab: dict[str, int] = self._tokenizer.get_vocab()
        self._vocab_size = len(vocab)
        # Plain words, which every engine's pre-tokeniser splits alike, and which are one token each.
        words = (text[1:] for text in vocab if text.startswith("Ġ"))
        self._words = sorted(word for word in words if word.isascii() and word.isalpha())

    def token_ids(self, num_prompts: int, num_tokens: int) -> list[list[int]]:
        """Return prompts of random token ids."""
        ids = range(FIRST_TOKEN_ID, self._vocab_size)
        return [self._random.choices(ids, k=num_tokens) for _ in range(num_prompts)]

    def texts(self, num_prompts: int, num_tokens: int) -> list[str]:
        """Return texts that the model's tokeniser cuts into exactly so many tokens."""
        words = (self._random.choices(self._words, k=num_tokens) for _ in range(num_prompts))
        return ["".join(f" {word}" for word in text) for text in words]
