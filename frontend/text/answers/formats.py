"""How families of models write reasoning and tool calls: one row of a table per family.

A new family is a row here, or, if it writes a call in a way that none of the shapes below describes, a new
shape and a reader for it (frontend.text.answers.calls).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from splitserve.frontend.text.answers.channel_format import HARMONY, Channels


class ReasoningFormat(Struct, frozen=True):
    """The tags around reasoning.

    Attributes:
        name: value of --reasoning-parser.
        begin: opens it; only as the first of an answer, and templates may write it themselves.
        end: closes it.
        channels: how the whole answer is written, if it is messages on channels; None for text.
        other_begins, other_ends: other spellings of the two.
        answer_begin, answer_end: around the answer behind reasoning, "" for nothing; each may be missing.
    """

    name: str
    begin: str
    end: str
    channels: Channels | None = None
    other_begins: tuple[str, ...] = ()
    other_ends: tuple[str, ...] = ()
    answer_begin: str = ""
    answer_end: str = ""

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags."""
        if self.channels is not None:
            return self.channels.tags
        found = (*self.begins, *self.ends, self.answer_begin, self.answer_end)
        return tuple(tag for tag in found if tag)

    @property
    def begins(self) -> tuple[str, ...]:
        """All spellings of the tag that opens it."""
        return self.begin, *self.other_begins

    @property
    def ends(self) -> tuple[str, ...]:
        """All spellings of the tag that closes it."""
        return self.end, *self.other_ends

    @property
    def answer(self) -> str:
        """What stands before an answer without reasoning."""
        return "" if self.channels is None else self.channels.header(self.channels.answer)

    @property
    def before_answer(self) -> str:
        """What closes the reasoning and stands before the answer."""
        channels = self.channels
        return self.end if channels is None else f"{self.end}{channels.start}{channels.role}{self.answer}"

    def is_in(self, template: str) -> bool:
        """Tell whether a template is of a model that writes it."""
        if self.channels is not None:
            return all(mark in template for mark in (self.channels.channel, self.channels.message))
        if self.answer_begin and self.answer_begin not in template:
            return False
        return self.begin in template or self.end in template


class NamedCall(Struct, frozen=True):
    """A name, then the arguments as JSON.

    Attributes:
        begin: tag before each call, "" for none.
        kind_end: ends a word before the name that says what kind of tool it is, "" for no such word.
        name_ends: tags that end the name; "{" begins the arguments and is left to them.
        name_prefix: what may stand before the name and is no part of it.
        id_begin: one of name_ends behind which an id stands, then another of them; "" for no ids.
        fence: what stands between the name and the arguments, "" for nothing.
        end: tags behind the arguments, each of which may be missing.
    """

    begin: str = ""
    kind_end: str = ""
    name_ends: tuple[str, ...] = ()
    name_prefix: str = ""
    id_begin: str = ""
    fence: str = ""
    end: tuple[str, ...] = ()

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags."""
        return self.begin, self.kind_end, *self.name_ends, *self.end


class TaggedCall(Struct, frozen=True):
    """A name, then each argument between tags, as plain text or JSON.

    Attributes:
        begin: tag before the name, "" for none.
        name_ends: tags that end the name; those that are also key_begin or an end are left to what follows.
        key_begin, key_end: around the name of an argument.
        value_begin: between that and the value, "" for nothing.
        value_end: behind the value.
        end: tag behind the arguments, "" for none.
    """

    begin: str
    name_ends: tuple[str, ...]
    key_begin: str
    key_end: str
    value_begin: str
    value_end: str
    end: str = ""

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags."""
        found = (self.begin, *self.name_ends, self.key_begin, self.key_end)
        return *found, self.value_begin, self.value_end, self.end


class PythonCall(Struct, frozen=True):
    """A list of Python calls with keyword arguments: [f(a=1), g(b="x")]."""

    tags: tuple[str, ...] = ()


class QuotedCall(Struct, frozen=True):
    """A name, then an object like JSON, but without quotes around keys, and tags around texts.

    Attributes:
        name_prefix: stands before the name.
        quote: tag on both sides of a text.
    """

    name_prefix: str
    quote: str

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags."""
        return (self.quote,)


class ToolFormat(Struct, frozen=True):
    """How one family writes tool calls.

    After a tag of `begin`, or at the beginning of the content if `bare`, there are calls of the shape, or
    JSON objects with name and arguments, alone or in a list.

    Attributes:
        name: value of --tool-call-parser.
        marks: a template that contains all of these belongs to the family.
        begin: tags that begin calls.
        end: tag that ends them; "" if there is none.
        shape: of a call that is not a JSON object; None if all are.
        bare: calls may also begin the content without a tag. They are taken for calls only if they name a
            tool of the request.
        in_list: several JSON objects stand in a list, behind one tag.
        channels: how the whole answer is written, if it is messages on channels; the rest then says nothing.
    """

    name: str
    marks: tuple[str, ...]
    begin: tuple[str, ...]
    end: str = ""
    shape: NamedCall | TaggedCall | PythonCall | QuotedCall | None = None
    bare: bool = False
    in_list: bool = False
    channels: Channels | None = None

    @property
    def tags(self) -> frozenset[str]:
        """All tags; those that are special tokens of the tokenizer must be kept in the text."""
        if self.channels is not None:
            return frozenset(self.channels.tags)
        inner = self.shape.tags if self.shape is not None else ()
        return frozenset((*self.begin, self.end, *inner)) - {""}

    @property
    def openers(self) -> tuple[str, ...]:
        """The tags at which calls may begin: models forget the one around all calls."""
        own = self.shape.begin if isinstance(self.shape, NamedCall | TaggedCall) else ""
        return (*self.begin, own) if own else self.begin


class AnswerFormats(NamedTuple):
    """How a model writes its answers; None for what it never writes, or writes in a way that is not known."""

    reasoning: ReasoningFormat | None = None
    tools: ToolFormat | None = None


# The first row that is in a template counts.
REASONING_FORMATS: Final[tuple[ReasoningFormat, ...]] = (
    ReasoningFormat("harmony", HARMONY.header(HARMONY.reasoning), HARMONY.end, HARMONY),
    ReasoningFormat(
        "granite",
        "Here is my thought process:",
        "Here is my response:",
        other_begins=("Here's my thought process:",),
        other_ends=("Here's my response:",),
    ),
    ReasoningFormat(
        "granite_think", "<think>", "</think>", answer_begin="<response>", answer_end="</response>"
    ),
    ReasoningFormat("think", "<think>", "</think>"),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
)

_DEEPSEEK_BEGIN, _DEEPSEEK_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_DEEPSEEK_CALL = NamedCall(
    begin="<｜tool▁call▁begin｜>", name_ends=("<｜tool▁sep｜>",), end=("<｜tool▁call▁end｜>",)
)

# When a template is looked at, the first row whose marks it has counts, so those with more marks come first.
TOOL_FORMATS: Final[tuple[ToolFormat, ...]] = (
    ToolFormat("harmony", marks=(HARMONY.channel, HARMONY.message), begin=(), channels=HARMONY),
    ToolFormat(
        "deepseek_v3",
        marks=(_DEEPSEEK_BEGIN, "```json"),
        begin=(_DEEPSEEK_BEGIN,),
        end=_DEEPSEEK_END,
        shape=replace(
            _DEEPSEEK_CALL,
            kind_end="<｜tool▁sep｜>",
            name_ends=("\n",),
            fence="```json",
            end=("```", "<｜tool▁call▁end｜>"),
        ),
    ),
    ToolFormat(
        "deepseek_v31",
        marks=(_DEEPSEEK_BEGIN,),
        begin=(_DEEPSEEK_BEGIN,),
        end=_DEEPSEEK_END,
        shape=_DEEPSEEK_CALL,
    ),
    ToolFormat(
        "kimi_k2",
        marks=("<|tool_calls_section_begin|>",),
        begin=("<|tool_calls_section_begin|>",),
        end="<|tool_calls_section_end|>",
        shape=NamedCall(
            begin="<|tool_call_begin|>",
            name_ends=("<|tool_call_argument_begin|>",),
            name_prefix="functions.",
            end=("<|tool_call_end|>",),
        ),
    ),
    ToolFormat(
        "mistral",
        marks=("[TOOL_CALLS]",),
        begin=("[TOOL_CALLS]",),
        shape=NamedCall(name_ends=("[CALL_ID]", "[ARGS]", "{"), id_begin="[CALL_ID]"),
        in_list=True,
    ),
    ToolFormat(
        "qwen3_coder",
        marks=("<function=", "<parameter="),
        begin=("<tool_call>",),
        end="</tool_call>",
        shape=TaggedCall(
            "<function=",
            (">",),
            "<parameter=",
            ">",
            value_begin="",
            value_end="</parameter>",
            end="</function>",
        ),
    ),
    ToolFormat(
        "glm45",
        marks=("<tool_call>", "<arg_key>"),
        begin=("<tool_call>",),
        end="</tool_call>",
        shape=TaggedCall(
            "",
            ("\n", "<arg_key>", "</tool_call>"),
            "<arg_key>",
            "</arg_key>",
            value_begin="<arg_value>",
            value_end="</arg_value>",
        ),
    ),
    ToolFormat("hermes", marks=("<tool_call>",), begin=("<tool_call>",), end="</tool_call>"),
    ToolFormat(
        "phi4_mini_json",
        marks=("<|tool|>", "<|/tool|>"),
        begin=("<|tool_call|>", "functools"),
        end="<|/tool_call|>",
        in_list=True,
    ),
    ToolFormat(
        "functiongemma",
        marks=("<start_function_call>",),
        begin=("<start_function_call>",),
        end="<end_function_call>",
        shape=QuotedCall("call:", "<escape>"),
    ),
    ToolFormat(
        "gemma4",
        marks=("<|tool_call>",),
        begin=("<|tool_call>",),
        end="<tool_call|>",
        shape=QuotedCall("call:", '<|"|>'),
    ),
    ToolFormat("granite", marks=("<|tool_call|>",), begin=("<|tool_call|>",), in_list=True),
    ToolFormat(
        "pythonic",
        marks=("[func_name1(",),
        begin=("<|python_start|>",),
        end="<|python_end|>",
        shape=PythonCall(),
        bare=True,
    ),
    ToolFormat("llama3_json", marks=("<|python_tag|>",), begin=("<|python_tag|>",), bare=True),
    ToolFormat("llama3_json", marks=('{"name": function name,',), begin=("<|python_tag|>",), bare=True),
)
# For templates that show tools in a way that no row knows.
PLAIN_JSON: Final = ToolFormat("json", marks=(), begin=(), bare=True, in_list=True)

AUTO, NONE = "auto", "none"
REASONING_PARSERS: Final = (AUTO, NONE, *(each.name for each in REASONING_FORMATS))
TOOL_CALL_PARSERS: Final = (AUTO, NONE, *dict.fromkeys(each.name for each in (*TOOL_FORMATS, PLAIN_JSON)))


def tool_format(name: str) -> ToolFormat:
    """Return the format of a name."""
    return next(each for each in (*TOOL_FORMATS, PLAIN_JSON) if each.name == name)
