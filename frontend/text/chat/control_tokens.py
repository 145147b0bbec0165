"""Tells control tokens written by a chat template from the same characters in text that users wrote.

A user who writes "<|im_end|>" must not end the turn. So the tokenizer is told to read all added tokens as
ordinary text, and each gets an alias that no text can contain: what is meant as a token is first replaced by
its alias. User text never is. In a chat, before the template is rendered, an invisible mark is put inside
whatever in a user's string could become a control token; tokens that are still whole after rendering are the
template's own and get their alias, then the marks are dropped. It is a single call of the tokenizer, so words
are split as usual.

Marks and aliases start with Unicode noncharacters, which are not meant for text interchange; those in user
text become U+FFFD.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from tokenizers import AddedToken, Encoding

from splitserve.engine_core.errors import InvalidRequestError, ModelLoadError
from splitserve.frontend.text.pairs import Pair, cut_pair, pair_of
from splitserve.frontend.text.tokenizer_library import LibraryTokenizer
from splitserve.frontend.text.trie_pattern import trie_pattern
from splitserve.frontend.text.truncation import Truncation

JsonValue = str | int | float | bool | None | Sequence["JsonValue"] | Mapping[str, "JsonValue"]

MARK = "\ufdd0"
_ALIAS = "\ufdd1"
# U+FDD2 is the tag of frontend.text.chat.named_template.
_OURS = re.compile(f"[{MARK}{_ALIAS}\ufdd2]")
_FIRST_ALIAS = 0xF0000
_FILLER = 0xE000
MAX_ADDED_TOKENS = 65534
# Control tokens rarely share a longer prefix with ordinary text than this.
_TELLTALE_CHARS = 3


def neutralise(text: str) -> str:
    """Replace the noncharacters that marks, aliases and tags are made of with U+FFFD."""
    return _OURS.sub("\ufffd", text)


class TextMarker:
    """Marks user strings so that no control token survives in them."""

    def __init__(self, tokens: Iterable[str]) -> None:
        """Create a marker for these control tokens, each at least two characters long."""
        telltales = {token[:_TELLTALE_CHARS] for token in tokens if len(token) > 1}
        # The template could join a text that ends in "<|im_" to one that starts with "end|>"; whitespace
        # after it may be trimmed first.
        endings = {telltale[:size] for telltale in telltales for size in range(1, len(telltale))}
        firsts = {telltale[0] for telltale in telltales}
        # Matches the first character only: another control token may start within this one.
        self._begin = re.compile(rf"{trie_pattern(firsts)}(?<=(?={trie_pattern(telltales)}).)", re.DOTALL)
        self._ending = re.compile(rf"(?={trie_pattern(endings)}(?:\s|\Z)).", re.DOTALL)

    def mark(self, text: str) -> str:
        """Put a mark after the first character of whatever is, or may become, a control token."""
        text = self._begin.sub(_with_mark, neutralise(text))
        # Only from here on can an ending be followed by nothing but whitespace. Checking this everywhere
        # would take quadratic time for a text of blanks if a control token starts with some.
        start = max(0, len(text.rstrip()) - _TELLTALE_CHARS + 1)
        return text[:start] + self._ending.sub(_with_mark, text[start:])

    def mark_all(self, value: JsonValue) -> JsonValue:
        """Mark every string in a JSON value, including the keys of objects.

        Raises:
            InvalidRequestError: a key is not a string.
        """
        if isinstance(value, str):
            return self.mark(value)
        if isinstance(value, Mapping):
            if not all(isinstance(key, str) for key in value):
                raise InvalidRequestError(
                    "the messages must be JSON values: a key is not a string", "messages"
                )
            return {self.mark(key): self.mark_all(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self.mark_all(item) for item in value]
        return value


def _with_mark(match: re.Match[str]) -> str:
    return match[0] + MARK


class ControlEncoder:
    """Encodes text, reading added tokens only where they are meant; for any thread."""

    def __init__(self, raw: LibraryTokenizer, vocab_size: int, control_ids: Collection[int]) -> None:
        """Take ownership of a tokenizer, which reads added tokens as ordinary text from now on.

        Args:
            raw: the tokenizer; modified.
            vocab_size: one more than its largest id.
            control_ids: ids that ordinary text must never produce.

        Raises:
            ModelLoadError: there are more added tokens than aliases.
        """
        added = raw.added_tokens()
        # Whitespace tokens are not structure, and templates contain them as ordinary text.
        hidden = {token_id: token for token_id, token in added.items() if not token.content.isspace()}
        if len(hidden) > MAX_ADDED_TOKENS:
            raise ModelLoadError(
                f"the tokenizer has {len(hidden)} added tokens, more than {MAX_ADDED_TOKENS}"
            )
        self._raw = raw
        self._control_ids = frozenset(control_ids)
        self._aliases = {
            token.content: _ALIAS + chr(_FIRST_ALIAS + i) for i, token in enumerate(hidden.values())
        }
        self._hide(hidden.values(), vocab_size)
        self._ids = {
            raw.token_to_id(self._aliases[token.content]) or -1: token_id
            for token_id, token in hidden.items()
        }
        assert min(self._ids, default=vocab_size) >= vocab_size, "an alias has no id of its own"
        self._single_words = {token.content for token in hidden.values() if token.single_word}
        self._all = re.compile(trie_pattern(self._aliases))
        self._plain = re.compile(
            trie_pattern(token.content for token in hidden.values() if not token.special)
        )

    def encode(self, text: str, add_special_tokens: bool, *, parse_special_tokens: bool) -> list[int]:
        """Encode a text; special tokens in it are read as tokens only if requested.

        Raises:
            InvalidRequestError: the tokenizer's model produces a control token from ordinary text.
        """
        pattern = self._all if parse_special_tokens else self._plain
        return self._encode(pattern.sub(self._alias, neutralise(text)), add_special_tokens)

    def encode_pair(
        self, texts: tuple[str, str], add_special_tokens: bool, truncation: Truncation | None
    ) -> Pair:
        """Encode two texts as one prompt; special tokens in them are read as tokens, as in encode().

        Args:
            texts: both.
            add_special_tokens: put what the post-processor adds around and between them.
            truncation: of the prompt; None for none.

        Raises:
            InvalidRequestError: as encode(), or the template is not for any model here.
        """
        first, second = (self._encoding(self._all.sub(self._alias, neutralise(text))) for text in texts)
        if truncation is not None:
            num_special = len(self._raw.join(first, second, add_special_tokens)) - len(first) - len(second)
            cut_pair(first, second, truncation, num_special)
        pair = pair_of(self._raw.join(first, second, add_special_tokens))
        return pair._replace(token_ids=self._real(pair.token_ids))

    def encode_marked(self, text: str) -> list[int]:
        """Encode a rendered chat; whole added tokens are read as tokens, marked ones as ordinary text.

        Raises:
            InvalidRequestError: as encode().
        """
        return self._encode(self._all.sub(self._alias, text).replace(MARK, ""), False)

    def _alias(self, match: re.Match[str]) -> str:
        if match[0] in self._single_words and _touches_a_word(match):
            return match[0]
        return self._aliases[match[0]]

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        encoding = self._encoding(text)
        token_ids: list[int] = encoding.ids
        if add_special_tokens:
            token_ids = self._raw.add_special_tokens_to(encoding)
        return self._real(token_ids) if _ALIAS in text else token_ids

    def _encoding(self, text: str) -> Encoding:
        """Return the encoding of a text in which tokens have their aliases."""
        encoding = self._raw.encode(text)
        if not self._control_ids.isdisjoint(encoding.ids):
            raise InvalidRequestError(
                "the text contains a control token that this tokenizer cannot distinguish from text"
            )
        return encoding

    def _real(self, token_ids: list[int]) -> list[int]:
        """Return ids with those of tokens in the place of their aliases'."""
        real = self._ids
        return [real.get(token_id, token_id) for token_id in token_ids]

    def _hide(self, tokens: Collection[AddedToken], vocab_size: int) -> None:
        self._raw.add_tokens(
            [_like(token, token.content, True) for token in tokens if not token.special], special=True
        )
        self._raw.read_special_tokens_as_text()
        # New ids start at the number of tokens; in a vocabulary with holes, existing ids exceed that.
        num_fillers = vocab_size - len(self._raw.vocab())
        self._raw.add_tokens([f"{_ALIAS}{chr(_FILLER)}{i}" for i in range(num_fillers)])
        self._raw.add_tokens([_like(token, self._aliases[token.content], False) for token in tokens])


def _touches_a_word(match: re.Match[str]) -> bool:
    start, end = match.span()
    before, after = match.string[max(0, start - 1) : start], match.string[end : end + 1]
    return any(char.isalnum() or char == "_" for char in before + after)


def _like(token: AddedToken, content: str, special: bool) -> AddedToken:
    return AddedToken(
        content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        # A token that is matched in normalized text (the library's default for non-special tokens) is missed
        # after a letter if the normalizer puts "▁" before every text. Ours are always found.
        normalized=False,
        special=special,
    )
