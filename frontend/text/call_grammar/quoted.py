"""What may be written as arguments that look like JSON without quotes: {a:1,b:<escape>x<escape>}."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from splitserve.frontend.text.call_grammar.arguments import (
    UNHELD_IN_TEXTS,
    Parameter,
    is_any,
    listed_arguments,
    only_texts,
    parameters_of,
    refusal,
    types_of,
)
from splitserve.frontend.text.call_grammar.demand import CallableTool, Schema
from splitserve.frontend.text.call_grammar.lark import Lark, one_of

_SCALARS: Final = ("integer", "number", "boolean", "null")
# Of lists; what is followed is of what, and how many.
_OF_LISTS: Final = ("uniqueItems", "prefixItems", "contains")
# A name that needs nothing around it.
_NAME: Final = r"/[^:,{}\[\] \n<][^:,{}\[\]\n<]*/"


class QuotedArguments:
    """Writes the rules of one tool's arguments."""

    def __init__(self, lark: Lark, index: int, tool: CallableTool, quote: str) -> None:
        """Prepare.

        Args:
            lark: gets the rules.
            index: of the tool, which tells its rules from others'.
            tool: to call.
            quote: tag on both sides of a text.
        """
        self._lark = lark
        self._index = index
        self._tool = tool
        self._quote = quote
        self._num_rules = 0

    def rule(self) -> str:
        """Return the rule of the arguments.

        Raises:
            RefusalError: the schema cannot be followed in this way.
        """
        parameters = parameters_of(self._tool)
        return self._lark.rule(f"arguments_{self._index}", self._object(parameters, "properties"))

    def _object(self, parameters: Sequence[Parameter], path: str) -> str:
        number, colon = self._next(), self._colon()
        for parameter in parameters:
            if set(parameter.name) & set(":,{}[]") or not parameter.name or self._quote in parameter.name:
                words = f"the name {parameter.name!r} of a parameter cannot be written in this model's calls"
                raise refusal(self._tool, words)

        def write(parameter: Parameter) -> str:
            value = self._value(parameter.schema, f"{path}.{parameter.name}")
            return f"{self._lark.text(parameter.name)} {colon} {value}"

        inner = listed_arguments(self._lark, f"{self._index}_{number}", parameters, write)
        return f'"{{" {inner} "}}"'

    def _value(self, schema: Schema, path: str) -> str:
        if (texts := only_texts(schema)) is not None:
            return one_of("null" if text == "null" else self._quoted(text) for text in texts)
        if types := types_of(schema):
            return one_of(self._of_type(each, schema, path) for each in types)
        if self._tool.strict and not is_any(schema):
            raise refusal(self._tool, f"{path}: strict needs a type here in this model's calls")
        return self._any()

    def _of_type(self, kind: str, schema: Schema, path: str) -> str:
        if kind in _SCALARS:
            return self._lark.json({**schema, "type": kind}, self._tool, path)
        if kind == "string":
            self._check(UNHELD_IN_TEXTS, schema, path)
            return self._text()
        if kind == "array":
            self._check(_OF_LISTS, schema, path)
            items = schema.get("items")
            item = self._value(items, f"{path}.items") if isinstance(items, Mapping) else self._any()
            return self._list(self._lark.rule(f"item_{self._index}_{self._next()}", item), schema)
        if "properties" not in schema:
            return self._any_object()
        nested = replace(self._tool, parameters={**schema, "type": "object"})
        return self._object(parameters_of(nested), f"{path}.properties")

    def _list(self, item: str, schema: Schema) -> str:
        low, high = (schema.get(name) for name in ("minItems", "maxItems"))
        low, high = low if isinstance(low, int) else 0, high if isinstance(high, int) else None
        if high is not None and high < max(low, 1):
            return '"[" "]"'
        needed = f'("," {item}){{{low - 1}}}' if low > 1 else ""
        num_more = None if high is None else high - max(low, 1)
        times = "*" if num_more is None else f"{{0,{num_more}}}"
        # A range cannot end with 0.
        more = "" if num_more == 0 else f'("," {item}){times}'
        some = f"{item} {needed} {more}"
        return f'"[" {some} "]"' if low else f'"[" ({some})? "]"'

    def _check(self, words: Sequence[str], schema: Schema, path: str) -> None:
        found = [word for word in words if word in schema]
        if found and self._tool.strict:
            raise refusal(self._tool, f"{path}: strict cannot follow {found[0]} in this model's calls")

    def _quoted(self, text: str) -> str:
        return self._lark.text(f"{self._quote}{text}{self._quote}")

    def _text(self) -> str:
        return f"{self._lark.text(self._quote)} {self._lark.text_before('quoted_text', self._quote)}"

    def _any(self) -> str:
        """Return the rule of any value, which refers to itself."""
        lark = self._lark
        scalar = lark.rule("scalar", r"/true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?/")
        list_of_any = '"[" (any_value ("," any_value)*)? "]"'
        lark.rule("any_member", f"{lark.rule('any_name', _NAME)} {self._colon()} any_value")
        lark.rule("any_object", '"{" (any_member ("," any_member)*)? "}"')
        return lark.rule("any_value", f"{self._text()} | {scalar} | {list_of_any} | any_object")

    def _any_object(self) -> str:
        self._any()
        return "any_object"

    def _colon(self) -> str:
        return self._lark.rule("COLON", "/: ?/")

    def _next(self) -> int:
        self._num_rules += 1
        return self._num_rules
