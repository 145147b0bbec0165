"""Structured outputs say one thing, of a bounded length."""

from __future__ import annotations

from typing import Any

import pytest

from splitserve import StructuredOutputs, StructuredOutputsParams
from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.sampling_params import SamplingParams

KINDS: dict[str, Any] = {
    "json": {"type": "object"},
    "regex": "a",
    "choice": ("a", "b"),
    "grammar": 'start: "a"',
    "json_object": True,
    "structural_tag": {},
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_taken_alone_and_not_beside_another(kind: str) -> None:
    structured = StructuredOutputs(**{kind: KINDS[kind]})
    structured.validate()
    assert structured.kind == kind
    other = next(name for name in KINDS if name != kind)
    with pytest.raises(InvalidRequestError, match="exactly one of") as caught:
        StructuredOutputs(**{kind: KINDS[kind], other: KINDS[other]}).validate()
    assert caught.value.param == "structured_outputs"


def test_something_has_to_be_said() -> None:
    with pytest.raises(InvalidRequestError, match="got none"):
        StructuredOutputs().validate()
    assert StructuredOutputs(json=False).kind == "json"


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("regex", ["a", "a" * 8192], ["", "a" * 8193]),
        ("grammar", ["a", "a" * 131072], ["", "a" * 131073]),
        ("choice", [("a",) * 10000], [(), ("a",) * 10001, ("a" * 131073,)]),
    ],
)
def test_lengths_are_bounded(field: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        StructuredOutputs(**{field: value}).validate()
    for value in bad:
        with pytest.raises(InvalidRequestError) as caught:
            StructuredOutputs(**{field: value}).validate()
        assert caught.value.param == f"structured_outputs.{field}"


def test_whitespace_belongs_to_json() -> None:
    StructuredOutputs(json={}, whitespace_pattern=" ").validate()
    for fields in ({"regex": "a"}, {"json": {}, "disable_any_whitespace": True}):
        with pytest.raises(InvalidRequestError) as caught:
            StructuredOutputs(whitespace_pattern=" ", **fields).validate()
        assert caught.value.param == "structured_outputs.whitespace_pattern"


def test_a_grammar_or_a_beam_search_goes_not_with_it() -> None:
    structured = StructuredOutputs(regex="a")
    with pytest.raises(InvalidRequestError, match="excludes"):
        SamplingParams(structured_outputs=structured, grammar='start: "a"').validate()
    with pytest.raises(InvalidRequestError, match="with use_beam_search") as caught:
        SamplingParams(structured_outputs=structured, use_beam_search=True, temperature=0).validate()
    assert caught.value.param == "structured_outputs"


def test_an_engine_is_told_the_grammar_alone() -> None:
    sequence = SamplingParams(grammar='start: "a"').sequence(1, None)
    assert sequence.grammar == 'start: "a"'
    assert not hasattr(sequence, "structured_outputs")


def test_it_has_the_name_that_vllm_gives_it() -> None:
    assert StructuredOutputsParams is StructuredOutputs
