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

from splitserve.frontend.text.grammar.json_schema import read_schema
from splitserve.frontend.text.grammar.lark import LarkWriter, literal, regex
from splitserve.frontend.text.grammar.refusal import RefusalError
from splitserve.frontend.text.grammar.structural_tag import TagGrammar

_ANSWER = "answer"
# Models are used to a line or two between their reasoning and the answer.
_GAP = r"/[ \n]{0,2}/"

Json = Any


class GrammarBuilder:
    """The grammars of one request.

    Attributes:
        schemas: path -> the JSON schemas in it.
    """

    def __init__(self, special_tokens: Mapping[str, int], whitespace_pattern: str | None) -> None:
        """Begin with no grammar.

        Args:
            special_tokens: text to id.
            whitespace_pattern: what may stand between the parts of JSON; None lets nothing.
        """
        self.schemas: dict[str, Mapping[str, Json]] = {}
        self._writer = LarkWriter(special_tokens)
        self._options: dict[str, Json] = {
            "lenient": False,
            "coerce_one_of": False,
            "whitespace_flexible": False,
        }
        if whitespace_pattern is not None:
            self._options["whitespace_pattern"] = whitespace_pattern
        self._grammars: list[dict[str, Json]] = []

    def build(self, kind: str, value: Json, reasoning: tuple[str, str, bool] | None) -> str:
        """Return the grammar.

        Args:
            kind: field of StructuredOutputs.
            value: of that field.
            reasoning: what begins and ends it, and whether the prompt has begun it; None for none.

        Raises:
            RefusalError: the value is wrong, or not served.
        """
        answer = self._answer(kind, value)
        first = [] if reasoning is None else [_lark("reasoning", self._reasoning(*reasoning))]
        return json.dumps({"grammars": [*first, answer, *self._grammars]}, ensure_ascii=False)

    def _answer(self, kind: str, value: Json) -> dict[str, Json]:
        if kind in ("json", "json_object"):
            return self._json(_ANSWER, {"type": "object"} if kind == "json_object" else value, "")
        if kind == "regex":
            return _lark(_ANSWER, f"start: {regex(value)}")
        if kind == "choice":
            return _lark(_ANSWER, f"start: {' | '.join(map(literal, value))}")
        if kind == "grammar":
            return _lark(_ANSWER, to_lark(value))
        return _lark(_ANSWER, TagGrammar(self._writer, self._add_schema).write(_parse(value)))

    def _reasoning(self, begin: str, end: str, is_open: bool) -> str:
        rule, expression = self._writer.until("thoughts", end)
        if is_open:
            return f"start: {expression} {_GAP} @{_ANSWER}\n{rule}"
        return f"start: ({self._writer.text(begin)} {expression} {_GAP})? @{_ANSWER}\n{rule}"

    def _add_schema(self, value: Json, path: str) -> str:
        name = f"schema_{len(self._grammars)}"
        self._grammars.append(self._json(name, value, path))
        return f"@{name}"

    def _json(self, name: str, value: Json, path: str) -> dict[str, Json]:
        try:
            schema = read_schema(value)
        except RefusalError as error:
            raise RefusalError(str(error), f"{path}.{error.path}".strip(".")) from None
        self.schemas[path] = schema
        return {"name": name, "json_schema": {**schema, "x-guidance": self._options}}


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
