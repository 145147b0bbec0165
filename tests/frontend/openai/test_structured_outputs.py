"""response_format and structured_outputs: what reaches the pool, and what is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from splitserve.engine_core.structured_outputs import StructuredOutputs
from splitserve.frontend.text.answers.detection import with_overrides
from splitserve.frontend.text.answers.formats import AnswerFormats
from splitserve.frontend.text.grammar.context import GrammarContext, Reasoning
from tests.frontend.http.fake_pool import FakePool

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
TAG = {"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<a"]}
PATHS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x", "max_tokens": 9},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9},
}
CHAT = "/v1/chat/completions"
BOTH = pytest.mark.parametrize("path", list(PATHS))


def schema_format(**changes: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA} | changes}


SERVED: list[tuple[dict[str, Any], StructuredOutputs | None, str]] = [
    ({"response_format": None}, None, ""),
    ({"response_format": {"type": "text"}}, None, ""),
    ({"response_format": {"type": "json_object"}}, StructuredOutputs(json_object=True), "response_format"),
    (
        {"response_format": schema_format(strict=True, description="d")},
        StructuredOutputs(json=SCHEMA),
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "structural_tag", **TAG}},
        StructuredOutputs(structural_tag=TAG),
        "response_format",
    ),
    (
        {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
        StructuredOutputs(structural_tag={"format": {"type": "any_text"}}),
        "response_format",
    ),
    ({"structured_outputs": None}, None, ""),
    ({"structured_outputs": {"json": SCHEMA}}, StructuredOutputs(json=SCHEMA), ""),
    ({"structured_outputs": {"json": "{}", "regex": None}}, StructuredOutputs(json="{}"), ""),
    ({"structured_outputs": {"regex": "a+"}}, StructuredOutputs(regex="a+"), ""),
    ({"structured_outputs": {"choice": ["a", "b"]}}, StructuredOutputs(choice=("a", "b")), ""),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, StructuredOutputs(grammar='start: "a"'), ""),
    ({"structured_outputs": {"json_object": True}}, StructuredOutputs(json_object=True), ""),
    ({"structured_outputs": {"structural_tag": TAG}}, StructuredOutputs(structural_tag=TAG), ""),
    (
        {"structured_outputs": {"json": {}, "whitespace_pattern": " ?"}},
        StructuredOutputs(json={}, whitespace_pattern=" ?"),
        "",
    ),
    (
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "text"}},
        StructuredOutputs(regex="a"),
        "",
    ),
]


@BOTH
@pytest.mark.parametrize(("fields", "expected", "field"), SERVED, ids=lambda value: str(value)[:40])
async def test_what_is_asked_for_reaches_the_pool(
    client: httpx.AsyncClient,
    pool: FakePool,
    path: str,
    fields: dict[str, Any],
    expected: StructuredOutputs | None,
    field: str,
) -> None:
    response = await client.post(path, json=PATHS[path] | fields)
    assert response.status_code == 200, response.text
    (seen,) = pool.seen
    assert seen.request.sampling.structured_outputs == expected
    assert seen.request.grammar_context == GrammarContext(field)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "text", "json_schema": {"name": "x", "schema": {}}}},
        "response_format.json_schema",
    ),
    ({"response_format": schema_format(name="a b")}, "response_format.json_schema.name"),
    ({"response_format": schema_format(name="")}, "response_format.json_schema.name"),
    ({"response_format": schema_format(schema=3)}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "structural_tag"}}, "response_format"),
    ({"response_format": {"type": "structural_tag", "structures": []}}, "response_format"),
    ({"response_format": {"type": "structural_tag", "format": {}, **TAG}}, "response_format"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"regex": "a" * 8193}}, "structured_outputs.regex"),
    (
        {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
        "structured_outputs.whitespace_pattern",
    ),
    ({"structured_outputs": {"rgex": "a"}}, "structured_outputs"),
    (
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        "structured_outputs",
    ),
    (
        {"structured_outputs": {"regex": "a"}, "use_beam_search": True, "temperature": 0},
        "structured_outputs",
    ),
]


@BOTH
@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=lambda value: str(value)[:60])
async def test_what_is_wrong_is_refused_by_its_path(
    client: httpx.AsyncClient, pool: FakePool, path: str, fields: dict[str, Any], param: str
) -> None:
    response = await client.post(path, json=PATHS[path] | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert not pool.seen


async def test_reasoning_may_precede_the_answer_of_a_chat(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.formats = with_overrides(AnswerFormats(), "think", "none")
    fields = {"structured_outputs": {"regex": "a"}}
    await client.post(CHAT, json=PATHS[CHAT] | fields)
    await client.post("/v1/completions", json=PATHS["/v1/completions"] | fields)
    chat, text = (seen.request.grammar_context.reasoning for seen in pool.seen)
    assert chat == Reasoning("<think>", "</think>", is_open=False)
    assert text is None


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("<think>so", Reasoning("<think>", "</think>", is_open=True)),
        ("<think>so</think>", None),
    ],
)
async def test_the_place_in_a_turn_decides_whether_there_is_reasoning(
    client: httpx.AsyncClient, pool: FakePool, said: str, expected: Reasoning | None
) -> None:
    pool.formats = with_overrides(AnswerFormats(), "think", "none")
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": said}]
    fields = {"structured_outputs": {"regex": "a"}, "continue_final_message": True}
    response = await client.post(
        CHAT, json={"messages": messages, "add_generation_prompt": False, "max_tokens": 9} | fields
    )
    assert response.status_code == 200, response.text
    (seen,) = pool.seen
    assert seen.request.grammar_context.reasoning == expected
