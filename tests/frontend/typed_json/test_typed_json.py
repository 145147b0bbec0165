"""The first fault of a value is the one msgspec finds, and no field of a struct goes by unseen."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from splitserve.frontend.openai.schema.chat import ChatRequest
from splitserve.frontend.typed_json.faults import find_fault
from splitserve.frontend.typed_json.unknown import MAX_PATTERNS, unknown_fields


class Leaf(msgspec.Struct, frozen=True):
    a: Annotated[int, Meta(ge=0, le=3)]
    b: Annotated[str, Meta(min_length=1, max_length=2)] = "x"


class Closed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    a: float | None = None


class Params(msgspec.Struct, frozen=True):
    ids: Annotated[tuple[int, ...], Meta(max_length=2)] = ()
    bias: dict[int, float] = {}


class Tree(msgspec.Struct, frozen=True):
    a: list[Leaf | str] | str | None = None
    b: bool | Literal["never"] | None = None
    c: dict[str, float] | None = None
    d: Annotated[list[list[int]], Meta(min_length=1, max_length=2)] | None = None
    e: Closed | None = None
    f: dict[str, Any] | None = None


NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f", "g"])
LEAVES = st.sampled_from([None, True, False, 0, 3, 4, -1, 0.5, "", "x", "xyz", "never"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


def path_of(error: msgspec.ValidationError) -> str:
    """The path that the words of msgspec name."""
    named = re.search(r"at `\$\.?([^`]*)`$", str(error))
    path = named[1] if named else ""
    missing = re.match(r"Object missing required field `(.+?)`", str(error))
    return path + ("." if path else "") + missing[1] if missing else path


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_the_first_fault_is_the_one_that_msgspec_finds(value: dict) -> None:
    fault = find_fault(Tree, value)
    theirs = None
    try:
        msgspec.convert(value, Tree)
    except msgspec.ValidationError as error:
        theirs = path_of(error)
    assert (fault and fault.path) == theirs


@pytest.mark.parametrize(
    ("value", "path", "words"),
    [
        ({"ids": 5}, "ids", "expected an array of 0 to 2 entries, got int"),
        ({"ids": (1, "x")}, "ids[1]", "expected an integer, got str"),
        ({"ids": (1, 2, 3)}, "ids", "expected an array of 0 to 2 entries"),
        ({"bias": {"1": 1.0}}, "bias", "a key must be an integer, got str"),
        ({"bias": {1: "x"}}, "bias[...]", "expected a number, got str"),
    ],
)
def test_what_only_python_can_hold_is_walked_too(value: dict, path: str, words: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(value, Params)
    fault = find_fault(Params, value)
    assert fault is not None
    assert fault[:2] == (path, words)
    assert find_fault(Params, {"ids": (1, 2), "bias": {1: 2}}) is None


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_what_is_left_without_unknown_fields_is_all_that_the_struct_has(value: dict) -> None:
    try:
        tree = msgspec.convert(value, Tree)
    except msgspec.ValidationError:
        return
    # The first of each pattern at a time.
    while found := unknown_fields(Tree, value):
        for field in found:
            *places, name = field.path
            holder: Any = value
            for place in places:
                holder = holder[place]
            assert holder.pop(name) == field.value
    strict = msgspec.defstruct("Strict", [], bases=(Tree,), forbid_unknown_fields=True)
    assert msgspec.structs.asdict(msgspec.convert(value, strict)) == msgspec.structs.asdict(tree)
    assert not unknown_fields(Tree, value)


@pytest.mark.parametrize(
    ("field", "pattern"),
    [
        ({"x": 1}, "x"),
        ({"messages": [{"role": "user", "content": "a", "x": 1}]}, "messages[].x"),
        ({"messages": [{"role": "user", "content": ["a", {"x": 1}]}]}, "messages[].content[].x"),
        ({"messages": [{"tool_calls": [{"x": 1, "function": {}}]}]}, "messages[].tool_calls[].x"),
        ({"messages": [{"tool_calls": [{"function": {"x": 1}}]}]}, "messages[].tool_calls[].function.x"),
        ({"stream_options": {"x": 1}}, "stream_options.x"),
    ],
)
def test_an_unknown_field_is_found_at_any_depth_of_a_body(field: dict, pattern: str) -> None:
    assert [found.pattern for found in unknown_fields(ChatRequest, field)] == [pattern]


@pytest.mark.parametrize(
    "field", [{"chat_template_kwargs": {"x": 1}}, {"documents": [{"x": "1"}]}, {"logit_bias": {"1": 1}}]
)
def test_the_keys_of_an_object_without_fields_are_not_unknown(field: dict) -> None:
    assert not unknown_fields(ChatRequest, field)


def test_of_many_unknown_fields_a_few_are_told_and_those_known_elsewhere_count_for_nothing() -> None:
    names = {f"x{i}": i for i in range(1000)}
    many = {**names, "last": 1}
    assert len(unknown_fields(ChatRequest, many)) == MAX_PATTERNS
    told = unknown_fields(ChatRequest, many, lambda pattern, value: pattern in names)
    assert [field.path for field in told] == [("last",)]
    messages = [{"role": "user", "content": "a", "x": i} for i in range(1000)]
    told = unknown_fields(ChatRequest, {"messages": messages}, lambda pattern, value: value != 998)
    assert [field.path for field in told] == [("messages", 998, "x")]


def test_a_million_numbers_before_a_fault_cost_no_more_than_a_glance() -> None:
    fault = find_fault(Tree, {"d": [[*range(10**6), "x"]]})
    assert fault is not None
    assert fault.path == "d[0][1000000]"
