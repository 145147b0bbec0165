"""A small tokenizer as llguidance reads it, and outputs drawn at random from the masks of a grammar."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from splitserve.frontend.text.tokenizer import Tokenizer

EOS = "<|im_end|>"
# Walks that go on for so long are drawn towards their ends.
MAX_WANDERING = 250
MAX_TOKENS = 3000


class GrammarTokenizer:
    """One token per byte, some pairs of letters, EOS, and added tokens; some of these may be EOS as well."""

    def __init__(
        self,
        directory: Path,
        special: Iterable[str] = (),
        plain: Iterable[str] = (),
        ends: Iterable[str] = (),
    ) -> None:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        merges = [('"', ":"), ("{", '"'), ('"', "}"), ("}", "}"), ("a", "d"), ("ad", "d"), ('"', ",")]
        vocab = [*alphabet, *("".join(pair) for pair in merges)]
        library = Library(models.BPE(vocab={text: i for i, text in enumerate(vocab)}, merges=merges))
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        library.decoder = decoders.ByteLevel()
        added = [AddedToken(text, special=True, normalized=False) for text in ("<|im_start|>", EOS, *special)]
        library.add_special_tokens(added)
        library.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
        library.save(str(directory / "tokenizer.json"))
        self.tokenizer = Tokenizer(directory)
        self.eos = self.tokenizer.added_tokens[EOS]
        self.library = library
        self.ends = {self.eos, *map(self.tokenizer.added_tokens.__getitem__, ends)}
        self.guided = LLTokenizer(str(directory / "tokenizer.json"), eos_token=[*self.ends])

    def encode(self, text: str) -> list[int]:
        return self.library.encode(text, add_special_tokens=False).ids

    def text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=False)

    def matcher(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self.guided, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error() + grammar
        return matcher

    def accepts(self, grammar: str, text: str) -> bool:
        """Whether a text is a whole output."""
        matcher = self.matcher(grammar)
        tokens = self.encode(text)
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    def allowed(self, matcher: LLMatcher) -> list[int]:
        bias = matcher.compute_logit_bias()
        assert not matcher.is_error(), matcher.get_error()
        return [i for i, each in enumerate(bias) if each]

    def walk(self, grammar: str, draw: random.Random, begin: str = "") -> str | None:
        """Draw an output with a beginning; None if it found no end in time."""
        matcher, tokens = self.matcher(grammar), self.encode(begin)
        assert matcher.consume_tokens(tokens)
        closing = set(self.encode('"}])\n<>,:/|')) | set(range(256, self.tokenizer.vocab_size))
        while len(tokens) < MAX_TOKENS:
            allowed = self.allowed(matcher)
            assert allowed, f"nothing may follow {self.text(tokens)!r}"
            if self.eos in allowed and (
                len(allowed) == len(self.ends) or len(tokens) > MAX_WANDERING or draw.random() < 0.3
            ):
                return self.text(tokens)
            # Without a model behind it, a string would hardly end.
            few = [token for token in allowed if token in closing - self.ends]
            if few and draw.random() < (0.9 if len(tokens) > MAX_WANDERING else 0.4):
                allowed = few
            token = draw.choice([each for each in allowed if each not in self.ends])
            assert matcher.consume_token(token), f"{self.text([*tokens, token])!r}: {matcher.get_error()}"
            tokens.append(token)
        return None
