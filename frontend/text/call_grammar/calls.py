"""What may be written as calls of some tools? The rules of a format's calls in a grammar."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from splitserve.frontend.text.answers.calls import MAX_CALLS
from splitserve.frontend.text.answers.formats import (
    NamedCall,
    PythonCall,
    QuotedCall,
    TaggedCall,
    tool_format,
)
from splitserve.frontend.text.call_grammar.arguments import (
    is_python_name,
    json_arguments_rule,
    python_arguments_rule,
    tagged_arguments_rule,
)
from splitserve.frontend.text.call_grammar.demand import CallableTool, CallDemand
from splitserve.frontend.text.call_grammar.lark import Lark, one_of
from splitserve.frontend.text.call_grammar.quoted import QuotedArguments
from splitserve.frontend.text.grammar.refusal import RefusalError

# Behind the first.
_MORE: Final = f"{{0,{MAX_CALLS - 1}}}"


class CallGrammar:
    """Writes the rules of calls in one format."""

    def __init__(self, lark: Lark, demand: CallDemand) -> None:
        """Prepare.

        Args:
            lark: gets the rules.
            demand: says which.
        """
        self._lark = lark
        self._format = tool_format(demand.tool_format)
        self._tools = demand.tools
        self._several = demand.several

    def calls(self) -> str:
        """Return what matches calls, tags around them included.

        Raises:
            RefusalError: the format cannot write a tool, or not follow its schema.
        """
        lark, tools = self._lark, self._format
        if tools.bare:
            inner = lark.rule("inner", self._inner())
            tagged = [f"{self._any_begin()} {inner} {self._end()}"] if tools.begin else []
            return f"{lark.space()} {one_of([inner, *tagged])}"
        section = lark.rule("section", f"{self._any_begin()} {self._behind_begin()}")
        is_only = tools.in_list and tools.shape is None
        return section if is_only or self._calls_have_tags() else self._repeated(section, lark.space())

    def behind(self, opener: str) -> str:
        """Return what matches the calls behind one of the format's openers.

        Raises:
            RefusalError: the format cannot write a tool, or not follow its schema.
        """
        if opener in self._format.begin:
            return self._behind_begin()
        # The tag around all calls was forgotten; the one that ends them may be there.
        end = self._format.end
        tail = f"({self._lark.space()} {self._lark.text(end)})?" if end else ""
        return f"{self._shaped_call()} {tail}"

    def _behind_begin(self) -> str:
        space = self._lark.space()
        return self._lark.rule("behind_begin", f"{space} {self._inner()} {space} {self._end()}")

    def _any_begin(self) -> str:
        return one_of(map(self._lark.text, self._format.begin))

    def _end(self) -> str:
        """Return the tag behind calls, which one that stands in no list needs to be told from the next."""
        end, may_miss = self._format.end, self._format.in_list or self._format.bare
        return (f"({self._lark.text(end)})?" if may_miss else self._lark.text(end)) if end else ""

    def _calls_have_tags(self) -> bool:
        return isinstance(self._format.shape, NamedCall) and bool(self._format.shape.begin)

    def _inner(self) -> str:
        """Return what matches what stands between the tags around calls."""
        shape = self._format.shape
        if isinstance(shape, PythonCall):
            call = self._rule_of_each("call", self._python_call)
            return f'"[" {self._repeated(call, self._lark.rule("COMMA", "/, ?/"))} "]"'
        if isinstance(shape, QuotedCall):
            return self._rule_of_each("call", lambda index, tool: self._quoted_call(index, tool, shape))
        if shape is None:
            return self._json_calls()
        call = self._lark.rule("call", f"{self._lark.text(shape.begin)} {self._shaped_call()}")
        named = self._repeated(call, self._lark.space()) if self._calls_have_tags() else call
        return f"({named} | {self._json_list()})" if self._format.in_list else named

    def _json_calls(self) -> str:
        if self._format.in_list:
            return (
                f"({self._json_object()} | {self._json_list()})" if self._format.bare else self._json_list()
            )
        if self._format.bare:
            return self._repeated(self._json_object(), self._lark.rule("SEMICOLON", "/; ?/"))
        return self._json_object()

    def _json_list(self) -> str:
        calls = self._repeated(self._json_object(), self._lark.rule("COMMA", "/, ?/"))
        return f'"[" {calls} "]"'

    def _json_object(self) -> str:
        return self._rule_of_each("object", self._json_call)

    def _shaped_call(self) -> str:
        """Return what matches a call behind its own tag."""
        shape = self._format.shape
        if isinstance(shape, NamedCall):
            return self._rule_of_each("named", lambda index, tool: self._named_call(index, tool, shape))
        assert isinstance(shape, TaggedCall)
        return self._rule_of_each("tagged", lambda index, tool: self._tagged_call(index, tool, shape))

    def _json_call(self, index: int, tool: CallableTool) -> str:
        # In the pieces in which llguidance reads JSON: an answer of another form may begin in the same way.
        colon, comma = self._lark.rule("COLON", "/: ?/"), self._lark.rule("COMMA", "/, ?/")
        key, name = json.dumps('"name"'), json.dumps(f'"{tool.name}"')
        arguments = one_of(json.dumps(f'"{each}"') for each in ("arguments", "parameters"))
        head = f'"{{" {key} {colon} {name} {comma} {arguments} {colon}'
        return f'{head} {json_arguments_rule(self._lark, index, tool)} "}}"'

    def _named_call(self, index: int, tool: CallableTool, shape: NamedCall) -> str:
        lark, space = self._lark, self._lark.space()
        kind = lark.text(f"function{shape.kind_end}") if shape.kind_end else ""
        number = r'":" /[0-9]{1,3}/' if shape.name_prefix else ""
        parts = [kind, lark.text(shape.name_prefix + tool.name), number]
        if shape.id_begin:
            parts.append(f"({lark.text(shape.id_begin)} /[a-zA-Z0-9]{{9}}/)?")
        name_end = next(tag for tag in shape.name_ends if tag != shape.id_begin)
        is_optional = "{" in shape.name_ends and not lark.is_token(name_end)
        parts.append(f"({lark.text(name_end)})?" if is_optional else lark.text(name_end))
        if shape.fence:
            parts.append(lark.text(shape.fence))
        parts += [space, json_arguments_rule(lark, index, tool)]
        parts += [f"{space} {lark.text(tag)}" for tag in shape.end]
        return " ".join(part for part in parts if part)

    def _tagged_call(self, index: int, tool: CallableTool, shape: TaggedCall) -> str:
        lark = self._lark
        # A line feed is whitespace, too.
        name_end = shape.name_ends[0].strip()
        arguments = tagged_arguments_rule(lark, index, tool, shape)
        head = lark.text(tool.name + name_end)
        return f"{head} {lark.space()} {arguments} {lark.text(shape.end)}"

    def _python_call(self, index: int, tool: CallableTool) -> str:
        if not is_python_name(tool.name):
            path = tool.path.removesuffix("parameters") + "name"
            form = self._format.name
            text = f"{tool.name!r} is no name in Python, which calls in the format {form} are"
            raise RefusalError(text, field=path)
        return f'"{tool.name}(" {python_arguments_rule(self._lark, index, tool)} ")"'

    def _quoted_call(self, index: int, tool: CallableTool, shape: QuotedCall) -> str:
        arguments = QuotedArguments(self._lark, index, tool, shape.quote).rule()
        return f"{self._lark.text(shape.name_prefix + tool.name)} {arguments}"

    def _rule_of_each(self, name: str, write: Callable[[int, CallableTool], str]) -> str:
        """Return the rule of the calls of all tools."""
        return self._lark.rule(name, one_of(write(index, tool) for index, tool in enumerate(self._tools)))

    def _repeated(self, call: str, separator: str) -> str:
        return f"{call} ({separator} {call}){_MORE}" if self._several else call
