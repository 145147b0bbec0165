"""The rules of one grammar while it is written: each has a name, and is written once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from splitserve.frontend.text.call_grammar.demand import CallableTool, Schema
from splitserve.frontend.text.grammar.lark import ANY_TEXT, LarkWriter

# Models write a space behind colons and commas, or none; line feeds they can do without.
_JSON_LAYOUT: Final = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}

# Takes a schema of a tool, its path in that of the tool, and llguidance's options of layout; returns an
# expression.
AddSchema = Callable[[Schema, CallableTool, str, Schema], str]


class Lark:
    """One grammar as it is written; rules refer to each other by name."""

    def __init__(self, writer: LarkWriter, add_schema: AddSchema) -> None:
        """Begin with no rule.

        Args:
            writer: of texts.
            add_schema: of the builder of all grammars of the request.
        """
        self._writer = writer
        self._add_schema = add_schema
        self._rules: dict[str, str] = {}

    def __str__(self) -> str:
        """Return the text of the grammar."""
        return "".join(self._rules.values())

    def rule(self, name: str, body: str, options: str = "") -> str:
        """Add a rule, or keep the one of that name; return its name."""
        self._rules.setdefault(name, f"{name}{options}: {body}\n")
        return name

    def has(self, name: str) -> bool:
        """Tell whether there is a rule of a name."""
        return name in self._rules

    def text(self, text: str) -> str:
        """Return what matches a text, tokens among it."""
        return self._writer.text(text) if text else ""

    def any_text(self) -> str:
        """Return what matches any text, tokens not among it."""
        return self.rule("TEXT", ANY_TEXT)

    def text_before(self, name: str, tag: str) -> str:
        """Return what matches any text up to a tag, and the tag, the first that there is.

        Args:
            name: of a rule that may be needed; one for each tag.
            tag: text or token.
        """
        rule, expression = self._writer.until(name, tag)
        self._rules.setdefault(name, rule)
        return expression

    def space(self) -> str:
        """Return what matches the whitespace that may stand around tags, or nothing."""
        return self.rule("SPACE", r"/ ?\n{1,2}| /") + "?"

    def json(self, schema: Schema, tool: CallableTool, path: str = "", *, escapes: str = "") -> str:
        """Return what matches JSON of a schema.

        Args:
            schema: its references begin at its root.
            tool: that it belongs to.
            path: in the schema of the tool.
            escapes: letters that may follow a backslash in a string; "" for all.

        Raises:
            RefusalError: the tool is strict, and the schema is one that is not served.
        """
        layout = {**_JSON_LAYOUT, "json_allowed_escapes": escapes} if escapes else _JSON_LAYOUT
        return self._add_schema(schema, tool, path, layout)

    def is_token(self, text: str) -> bool:
        """Tell whether a text is one token that is no text."""
        return text in self._writer.tokens

    def other_tokens(self, excluded: Collection[str]) -> str:
        """Return what matches one token that is no text, "" if there is none but those excluded."""
        ids = sorted(token_id for text, token_id in self._writer.tokens.items() if text not in excluded)
        return f"<[{','.join(map(str, ids))}]>" if ids else ""


def one_of(options: Iterable[str]) -> str:
    """Return what matches one of some expressions."""
    found = list(dict.fromkeys(options))
    return found[0] if len(found) == 1 else f"({' | '.join(found)})"
