"""Keeps control tokens that a chat template writes apart from the same characters in text that users wrote.

A user who writes "<|im_end|>" must not end the turn. So before rendering, every string that comes from a user
gets an invisible mark inside whatever could become a control token; the template then cannot make one of it,
whatever it does with the string. After rendering, the control tokens still whole are the template's own: they
are replaced by aliases, the marks are dropped, and a copy of the tokenizer that knows the aliases but no
control tokens encodes the text in one go. Only conversations that hold something suspicious take this way;
all others are encoded as usual.

Marks and aliases are made of noncharacters, which no text interchange may contain; users' own are replaced by
U+FFFD.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from tokenizers import AddedToken
from tokenizers import Tokenizer as RawTokenizer

from engine_core.errors import InvalidRequestError

JsonValue = str | int | float | bool | None | Sequence["JsonValue"] | Mapping[str, "JsonValue"]

MARK = "\ufdd0"
_ALIAS = "\ufdd1"
_FIRST_ALIAS = 0xE000
_MAX_ALIASES = 0xF8FF - _FIRST_ALIAS
# U+FDD2 is the tag of frontend.chat_template.
_OURS = re.compile(f"[{MARK}{_ALIAS}\ufdd2]")
# Two different control tokens rarely share more of their beginning with ordinary text than this.
_TELLTALE_CHARS = 3


def neutralise(text: str) -> str:
    """Replace the noncharacters that marks, aliases and tags are made of."""
    return _OURS.sub("\ufffd", text)


class TextMarker:
    """Marks strings of users so that no control token survives in them."""

    def __init__(self, tokens: Iterable[str]) -> None:
        """Prepare for these control tokens, each at least two characters long."""
        tokens = sorted({token for token in tokens if len(token) > 1}, key=len, reverse=True)
        self._begin = re.compile("|".join(_beginnings(tokens)) or "(?!)")

    def mark(self, text: str) -> str:
        """Put a mark after the first character of whatever is, or may begin, a control token."""
        return self._begin.sub(lambda match: match[0][0] + MARK + match[0][1:], neutralise(text))

    def mark_all(self, value: JsonValue) -> JsonValue:
        """Mark every string in a JSON value, the keys of objects too."""
        if isinstance(value, str):
            return self.mark(value)
        if isinstance(value, Mapping):
            return {self.mark(key): self.mark_all(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self.mark_all(item) for item in value]
        return value


def _beginnings(tokens: Sequence[str]) -> list[str]:
    """Return patterns for the telltale beginning of each token, and for shorter ones that a text ends with.

    A text that ends in "<|im_" could be joined by the template to one that begins with "end|>"; blanks after
    it may be trimmed first.
    """
    telltales = dict.fromkeys(token[:_TELLTALE_CHARS] for token in tokens)
    endings = dict.fromkeys(
        telltale[:size] for telltale in telltales for size in range(len(telltale) - 1, 0, -1)
    )
    return [re.escape(telltale) for telltale in telltales] + [
        rf"{re.escape(ending)}(?=\s*\Z)" for ending in sorted(endings, key=len, reverse=True)
    ]


class MarkedEncoder:
    """Encodes rendered text in which user strings are marked; safe to call from several threads."""

    def __init__(self, raw: RawTokenizer, tokens: Mapping[str, int]) -> None:
        """Make the copy of the tokenizer that knows these control tokens by alias only.

        Args:
            raw: the tokenizer, left as it is.
            tokens: control tokens and their ids.
        """
        names = sorted(tokens, key=len, reverse=True)[:_MAX_ALIASES]
        self._aliases = {name: _ALIAS + chr(_FIRST_ALIAS + i) for i, name in enumerate(names)}
        self._raw = _copy_without(raw, set(names))
        added = {token.content: token for token in raw.get_added_tokens_decoder().values()}
        self._raw.add_tokens([_alias_token(added[name], alias) for name, alias in self._aliases.items()])
        self._ids = {self._raw.token_to_id(alias): tokens[name] for name, alias in self._aliases.items()}
        self._control_ids = frozenset(tokens.values())
        self._whole = re.compile("|".join(map(re.escape, names)) or "(?!)")

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Encode; whole control tokens become their ids, marked ones letters.

        Raises:
            InvalidRequestError: the tokenizer's own model makes a control token out of letters.
        """
        aliased = self._whole.sub(lambda match: self._aliases[match[0]], text).replace(MARK, "")
        return self._encode(aliased, add_special_tokens)

    def encode_plain(self, text: str, add_special_tokens: bool) -> list[int]:
        """Encode text of a user that holds no control token at all.

        Raises:
            InvalidRequestError: as encode().
        """
        return self._encode(neutralise(text), add_special_tokens)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        letters = self._raw.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if not self._control_ids.isdisjoint(letters):
            raise InvalidRequestError(
                "the text spells a control token that this tokenizer cannot tell from text"
            )
        ids = self._raw.encode_batch_fast([text])[0].ids if add_special_tokens else letters
        return [self._ids.get(token_id, token_id) for token_id in ids]


def _copy_without(raw: RawTokenizer, names: set[str]) -> RawTokenizer:
    """Return a copy that reads these added tokens as letters."""
    description = json.loads(raw.to_str())
    for token in description["added_tokens"]:
        # encode_special_tokens spares only tokens that are special.
        token["special"] = token["special"] or token["content"] in names
    copy = RawTokenizer.from_str(json.dumps(description))
    copy.encode_special_tokens = True
    return copy


def _alias_token(token: AddedToken, alias: str) -> AddedToken:
    return AddedToken(
        alias,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=False,
        special=False,
    )
