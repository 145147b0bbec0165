"""Makes of what a request asks for a grammar that llguidance reads: JSON with a list of grammars.

The first one is where it starts. Reasoning before the answer is a grammar of its own that refers to that of
the answer, so that neither's names meet the other's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from llguidance.gbnf_to_lark import gbnf_to_lark

from splitserve.frontend.text.answers.channel_format import Channels
from splitserve.frontend.text.answers.formats import tool_format
from splitserve.frontend.text.call_grammar.channel_outputs import ChannelOutputs
from splitserve.frontend.text.call_grammar.demand import CallableTool, CallDemand, Schema
from splitserve.frontend.text.call_grammar.lark import Lark
from splitserve.frontend.text.call_grammar.outputs import calls_or_answer, text_with_calls
from splitserve.frontend.text.grammar.bounded_thoughts import (
    FREE,
    Budget,
    free_with_budget,
    thoughts_with_budget,
)
from splitserve.frontend.text.grammar.context import Reasoning
from splitserve.frontend.text.grammar.json_schema import read_schema
from splitserve.frontend.text.grammar.lark import LarkWriter, literal, regex
from splitserve.frontend.text.grammar.refusal import RefusalError
from splitserve.frontend.text.grammar.rewrites.rewrite import rewrite
from splitserve.frontend.text.grammar.structural_tag import TagGrammar

_ANSWER, _FORM = "answer", "form"
# Models are used to a line or two between their reasoning and the answer.
_GAP = r"/[ \n]{0,2}/"

Json = Any


class GrammarBuilder:
    """The grammars of one request.

    Attributes:
        schemas: field and path -> the JSON schemas in it.
    """

    def __init__(self, special_tokens: Mapping[str, int], whitespace_pattern: str | None) -> None:
        """Begin with no grammar.

        Args:
            special_tokens: text to id.
            whitespace_pattern: what may stand between the parts of JSON; None lets nothing.
        """
        self.schemas: dict[tuple[str, str], Mapping[str, Json]] = {}
        self._writer = LarkWriter(special_tokens)
        self._options: dict[str, Json] = {
            "lenient": False,
            "coerce_one_of": False,
            "whitespace_flexible": False,
        }
        if whitespace_pattern is not None:
            self._options["whitespace_pattern"] = whitespace_pattern
        self._grammars: list[dict[str, Json]] = []

    def build(
        self,
        kind: str,
        value: Json,
        reasoning: Reasoning | None,
        calls: CallDemand | None = None,
        budget: Budget | None = None,
    ) -> str:
        """Return the grammar.

        Args:
            kind: field of StructuredOutputs, "" for none, or FREE.
            value: of that field.
            reasoning: that may precede the answer; None for none.
            calls: that the output may have instead of an answer, or must; None for none.
            budget: of the reasoning, None for any length; FREE needs both, and no calls.

        Raises:
            RefusalError: the value or a tool is wrong, or not served.
        """
        if kind == FREE and reasoning is not None and budget is not None:
            return free_with_budget(budget, is_open=reasoning.is_open)
        if calls is None:
            found = [self._answer(_ANSWER, kind, value)]
        elif (channels := tool_format(calls.tool_format).channels) is not None:
            # Reasoning is one of the messages.
            form = [self._answer(_FORM, kind, value)] if kind else []
            found = [_lark(_ANSWER, self._messages(calls, channels, budget, has_form=bool(kind))), *form]
            reasoning = None
        elif kind or calls.required:
            form = [self._answer(_FORM, kind, value)] if kind else []
            text = calls_or_answer(self._calls_lark(), calls, f"@{_FORM}" if kind else "")
            found = [_lark(_ANSWER, text), *form]
        elif reasoning is not None and budget is not None:
            found = [_lark(_ANSWER, text_with_calls(self._calls_lark(), calls, None, (reasoning.begin,)))]
        else:
            # Reasoning is part of it: such an output may end anywhere.
            found = [_lark(_ANSWER, text_with_calls(self._calls_lark(), calls, reasoning))]
            reasoning = None
        first = [] if reasoning is None else [_lark("reasoning", self._reasoning(*reasoning, budget))]
        return json.dumps({"grammars": [*first, *found, *self._grammars]}, ensure_ascii=False)

    def _messages(
        self, calls: CallDemand, channels: Channels, budget: Budget | None, *, has_form: bool
    ) -> str:
        thought = "" if budget is None else thoughts_with_budget(budget, self._writer.tokens.values())
        outputs = ChannelOutputs(self._calls_lark(), calls, channels, thought)
        if has_form or calls.required:
            return outputs.calls_or_answer(f"@{_FORM}" if has_form else "")
        return outputs.text_with_calls()

    def _answer(self, name: str, kind: str, value: Json) -> dict[str, Json]:
        if kind in ("json", "json_object"):
            return self._json(name, {"type": "object"} if kind == "json_object" else value, "")
        if kind == "regex":
            return _lark(name, f"start: {regex(value)}")
        if kind == "choice":
            return _lark(name, f"start: {' | '.join(map(literal, value))}")
        if kind == "grammar":
            return _lark(name, to_lark(value))
        return _lark(name, TagGrammar(self._writer, self._add_schema).write(_parse(value)))

    def _reasoning(self, begin: str, end: str, is_open: bool, otherwise: str, budget: Budget | None) -> str:
        if budget is None:
            rule, expression = self._writer.until("thoughts", end)
        else:
            thoughts = thoughts_with_budget(budget, self._writer.tokens.values())
            rule, expression = "", f"{thoughts} {self._writer.text(budget.end_rest)}"
        if is_open:
            return f"start: {expression} {_GAP} @{_ANSWER}\n{rule}"
        thought = f"{self._writer.text(begin)} {expression} {_GAP}"
        return f"start: ({thought} | {self._writer.text(otherwise)}) @{_ANSWER}\n{rule}"

    def _calls_lark(self) -> Lark:
        return Lark(self._writer, self._add_tool_schema)

    def _add_schema(self, value: Json, path: str) -> str:
        name = f"schema_{len(self._grammars)}"
        self._grammars.append(self._json(name, value, path))
        return f"@{name}"

    def _json(self, name: str, value: Json, path: str) -> dict[str, Json]:
        schema, rewritten = _read(value, path)
        self.schemas[("", path)] = schema
        return {"name": name, "json_schema": {**rewritten, "x-guidance": self._options}}

    def _add_tool_schema(self, schema: Schema, tool: CallableTool, path: str, layout: Schema) -> str:
        """Add a schema of arguments; one that need not be followed to the letter is taken as it is."""
        options = {"lenient": not tool.strict, "coerce_one_of": not tool.strict, **layout}
        read, rewritten = _read(schema, path, tool.path) if tool.strict else (schema, schema)
        name = f"schema_{len(self._grammars)}"
        self.schemas[(tool.path, path)] = read
        self._grammars.append({"name": name, "json_schema": {**rewritten, "x-guidance": options}})
        return f"@{name}"


def _read(value: Json, path: str, field: str = "") -> tuple[Mapping[str, Json], Mapping[str, Json]]:
    """Return a schema, and the same in words that llguidance knows."""
    try:
        schema = read_schema(value)
        return schema, rewrite(schema)
    except RefusalError as error:
        raise RefusalError(str(error), f"{path}.{error.path}".strip("."), field) from None


def to_lark(text: str) -> str:
    """Return a grammar that may be GBNF as Lark text.

    Raises:
        RefusalError: it has a rule of GBNF but cannot be read as such.
    """
    if not re.search(r"^\s*[\w-]+\s*::=", text, re.MULTILINE):
        return text
    try:
        return gbnf_to_lark(text)
    except Exception as error:
        raise RefusalError(f"it cannot be read as GBNF: {error}") from None


def _lark(name: str, text: str) -> dict[str, Json]:
    return {"name": name, "lark_grammar": text}


def _parse(value: Json) -> Json:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise RefusalError(f"it is not JSON: {error}") from None
