"""Structural tags as a grammar: any text, in which certain tags are followed by what they say.

Both forms that vLLM takes: `structures` and `triggers`, and of `format` the types const_string, json_schema,
regex, any_text, sequence, or, tag and triggered_tags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from splitserve.frontend.text.grammar.lark import ANY_TEXT, LarkWriter, literal, regex
from splitserve.frontend.text.grammar.refusal import RefusalError

MAX_TAGS = 128

Json = Any


class Tag(NamedTuple):
    """A tag: what begins it, the expression within, and what ends it."""

    begin: str
    content: str
    end: str


class TagGrammar:
    """Rules of one structural tag; write() fills them."""

    def __init__(self, writer: LarkWriter, add_schema: Callable[[Json, str], str]) -> None:
        """Begin with no rule.

        Args:
            writer: of texts.
            add_schema: takes a JSON schema and its path, and returns an expression for it.
        """
        self._writer = writer
        self._add_schema = add_schema
        self._rules: list[str] = []
        self._num_tags = 0

    def write(self, value: Json) -> str:
        """Return the Lark text.

        Raises:
            RefusalError: it is no structural tag, or one of a form that is not served.
        """
        value = _object(value, "")
        if "format" in value:
            start = self._format(value["format"], "format", is_last=True)
        else:
            start = self._legacy(value)
        return f"start: {start}\n{''.join(self._rules)}"

    def _legacy(self, value: Mapping[str, Json]) -> str:
        tags = []
        for i, each in enumerate(_list(value.get("structures"), "structures")):
            path = f"structures[{i}]"
            item = _object(each, path)
            content = self._add_schema(item.get("schema"), f"{path}.schema")
            tags.append(Tag(_text(item, "begin", path), content, _text(item, "end", path)))
        return self._triggered(_triggers(value, ""), tags, "structures", "*")

    def _format(self, value: Json, path: str, *, is_last: bool) -> str:
        item = _object(value, path)
        kind = item.get("type")
        if kind == "const_string":
            return self._writer.text(_text(item, "value", path))
        if kind == "json_schema":
            return self._add_schema(item.get("json_schema"), f"{path}.json_schema")
        if kind == "regex":
            return regex(_text(item, "pattern", path))
        if kind in ("sequence", "or"):
            return self._elements(item, path, is_last=is_last)
        if kind == "tag":
            tag = self._tag(item, path)
            return f"{self._writer.text(tag.begin)} {tag.content} {self._end(tag.end)}".strip()
        if kind in ("any_text", "triggered_tags"):
            if not is_last:
                raise RefusalError(f"{kind} may only come last, or alone within a tag", path)
            return ANY_TEXT if kind == "any_text" else self._triggered_format(item, path)
        raise RefusalError(f"the type {str(kind)[:100]!r} is not supported", path)

    def _elements(self, item: Mapping[str, Json], path: str, *, is_last: bool) -> str:
        elements = _list(item.get("elements"), f"{path}.elements")
        joins_all = item["type"] == "or"
        written = [
            self._format(
                each, f"{path}.elements[{i}]", is_last=is_last and (joins_all or i == len(elements) - 1)
            )
            for i, each in enumerate(elements)
        ]
        return f"({' | '.join(written)})" if joins_all else " ".join(written)

    def _triggered_format(self, item: Mapping[str, Json], path: str) -> str:
        each = enumerate(_list(item.get("tags"), f"{path}.tags"))
        tags = [self._tag(_object(tag, f"{path}.tags[{i}]"), f"{path}.tags[{i}]") for i, tag in each]
        if item.get("stop_after_first") or item.get("excludes"):
            raise RefusalError("stop_after_first and excludes are not supported", path)
        times = "+" if item.get("at_least_one") else "*"
        return self._triggered(_triggers(item, path), tags, f"{path}.tags", times)

    def _tag(self, item: Mapping[str, Json], path: str) -> Tag:
        begin, end = _text(item, "begin", path), _text(item, "end", path)
        content = _object(item.get("content"), f"{path}.content")
        if content.get("type") == "any_text" and end:
            rule, expression = self._writer.until(self._name("until"), end)
            self._rules.append(rule)
            return Tag(begin, expression, "")
        return Tag(begin, self._format(content, f"{path}.content", is_last=not end), end)

    def _triggered(self, triggers: Sequence[str], tags: Sequence[Tag], path: str, times: str) -> str:
        names = []
        heads = {trigger: self._head(trigger) for trigger in triggers}
        for i, tag in enumerate(tags):
            trigger = next((each for each in triggers if tag.begin.startswith(each)), None)
            if trigger is None:
                raise RefusalError("begin must begin with one of the triggers", f"{path}[{i}]")
            head, num_done = heads[trigger]
            rest = [literal(part) for part in self._writer.parts(tag.begin[num_done:])]
            name = self._name("tag")
            names.append(name)
            self._rules.append(f"{name}: {' '.join([head, *rest, tag.content, self._end(tag.end)])}\n")
        return f"({' | '.join(names)}){times} {ANY_TEXT}"

    def _head(self, trigger: str) -> tuple[str, int]:
        """Return a rule for text up to a trigger, and how much of the trigger it takes."""
        name = self._name("head")
        first = self._writer.parts(trigger)[0]
        if isinstance(first, int):
            self._rules.append(f"{name}: {ANY_TEXT} {literal(first)}\n")
            return name, self._writer.length(first)
        self._rules.append(f"{name}[lazy]: {ANY_TEXT} {literal(first)}\n")
        return name, len(first)

    def _end(self, end: str) -> str:
        return self._writer.text(end) if end else ""

    def _name(self, kind: str) -> str:
        self._num_tags += 1
        return f"{kind}_{self._num_tags}"


def _triggers(value: Mapping[str, Json], path: str) -> list[str]:
    name = f"{path}.triggers" if path else "triggers"
    triggers = _list(value.get("triggers"), name)
    if not all(isinstance(each, str) and each for each in triggers):
        raise RefusalError("triggers must be texts that are not empty", name)
    return triggers


def _object(value: Json, path: str) -> Mapping[str, Json]:
    if not isinstance(value, dict):
        raise RefusalError(f"it must be an object, got {type(value).__name__}", path)
    return value


def _list(value: Json, path: str) -> list[Json]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_TAGS:
        raise RefusalError(f"it must be a list of 1 to {MAX_TAGS}", path)
    return value


def _text(item: Mapping[str, Json], name: str, path: str) -> str:
    value = item.get(name, "" if name == "end" else None)
    # In `format` a tag may have several ends; one is what is served.
    if not isinstance(value, str) or (name == "begin" and not value):
        raise RefusalError(f"{name} must be a text", path)
    return value
