"""Grammars as llguidance reads them: Lark text, in which some added tokens of the tokenizer are not text.

llguidance counts an added token as special if tokenizer.json says so or if its text has the form <...>. Such
a token matches its own number only, not a text that it spells. A string that is all that may follow is
encoded as the tokenizer does it, and one of these tokens in it is an error: so every string is cut at them.
Other added tokens are text like any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from splitserve.frontend.text.chat.control_tokens import JsonValue
from splitserve.frontend.text.tokenizer import Tokenizer

# Models write a space behind colons and commas, or none; line feeds they can do without.
_JSON_LAYOUT: Final = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
# In regular expressions between slashes.
_ANY_TEXT: Final = r"/(.|\n)*/"


def tokens_apart(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the added tokens that are special to llguidance, by their texts."""
    special = tokenizer.special_tokens
    return {
        text: token_id
        for text, token_id in tokenizer.added_tokens.items()
        if text in special or (text.startswith("<") and text.endswith(">"))
    }


class Lark:
    """One grammar as it is written; rules refer to each other by name.

    Attributes:
        tokens: added tokens that are no text, by their texts.
    """

    def __init__(self, tokens: Mapping[str, int]) -> None:
        """Begin with no rule but those that all grammars share."""
        self.tokens = tokens
        self._rules: dict[str, str] = {}
        texts = sorted((text for text in tokens if text), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts))) if texts else None

    def __str__(self) -> str:
        """Return the text of the grammar."""
        return "\n".join(f"{name}: {body}" for name, body in self._rules.items()) + "\n"

    def rule(self, name: str, body: str, options: str = "") -> str:
        """Add a rule, or keep the one of that name; return its name."""
        self._rules.setdefault(f"{name}{options}", body)
        return name

    def text(self, text: str) -> str:
        """Return what matches a text, tokens among it."""
        parts, pos = list[str](), 0
        for match in self._pattern.finditer(text) if self._pattern is not None else ():
            parts += [*self._string(text[pos : match.start()]), f"<[{self.tokens[match[0]]}]>"]
            pos = match.end()
        return " ".join([*parts, *self._string(text[pos:])])

    def any_text(self) -> str:
        """Return what matches any text, tokens not among it."""
        return self.rule("TEXT", _ANY_TEXT)

    def text_before(self, name: str, tag: str) -> str:
        """Return what matches any text up to a tag, and the tag, the first that there is.

        Args:
            name: of a rule that may be needed; one for each tag.
            tag: text or token.
        """
        if tag in self.tokens:
            return f"{self.any_text()} {self.text(tag)}"
        return self.rule(name, f"{self.any_text()} {json.dumps(tag, ensure_ascii=False)}", "[lazy]")

    def space(self) -> str:
        """Return what matches the whitespace that may stand around tags, or nothing."""
        return self.rule("SPACE", r"/ ?\n{1,2}| /") + "?"

    def json(self, schema: Mapping[str, JsonValue], *, lenient: bool, escapes: str = "") -> str:
        """Return what matches JSON of a schema.

        Args:
            schema: its references begin at its root.
            lenient: pass over what llguidance does not know of JSON schema.
            escapes: letters that may follow a backslash in a string; "" for all.
        """
        guidance = {**_JSON_LAYOUT, "lenient": lenient}
        if escapes:
            guidance["json_allowed_escapes"] = escapes
        return "%json " + json.dumps({**schema, "x-guidance": guidance})

    def other_tokens(self, excluded: Collection[str]) -> str:
        """Return what matches one token that is no text, "" if there is none but those excluded."""
        ids = sorted(token_id for text, token_id in self.tokens.items() if text not in excluded)
        return f"<[{','.join(map(str, ids))}]>" if ids else ""

    def _string(self, text: str) -> Iterable[str]:
        return [json.dumps(text, ensure_ascii=False)] if text else []


def one_of(options: Iterable[str]) -> str:
    """Return what matches one of some expressions."""
    found = list(dict.fromkeys(options))
    return found[0] if len(found) == 1 else f"({' | '.join(found)})"
