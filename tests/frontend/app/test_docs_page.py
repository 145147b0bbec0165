"""/docs shows what the document says, and loads nothing from anywhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import httpx
import pytest

from splitserve.frontend.docs_page import fields_of, plain_text, render_docs, type_text
from splitserve.frontend.http.api_keys import hash_key
from tests.frontend.http.app_fixtures import ClientFactory

# Elements that have no end tag, and attributes that make a browser load what they name.
VOID = frozenset(("meta", "link", "input", "br", "img"))
LOADING = frozenset(("src", "srcset", "href", "action", "data", "poster"))


class Page(HTMLParser):
    """What a page consists of, and that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value or "")
            elif name in LOADING:
                (self.links if tag == "a" else self.loaded).append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
async def text(client: httpx.AsyncClient) -> str:
    response = await client.get("/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    return response.text


async def test_it_shows_every_operation_and_every_field(client: httpx.AsyncClient, text: str) -> None:
    document = (await client.get("/openapi.json")).json()
    ids = Page(text).ids
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["operationId"] in ids
            assert f"<code>{path}</code>" in text
    for name, schema in document["components"]["schemas"].items():
        assert f"schema-{name}" in ids
        for field in schema.get("properties", {}):
            assert f"<code>{field}</code>" in text


def test_it_loads_nothing_and_links_within_the_server(text: str) -> None:
    page = Page(text)
    assert page.loaded == ["data:,"]
    assert {link for link in page.links if not link.startswith("#")} == {"/openapi.json"}
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert not re.search(r"https?:|//\w|@import|url\(|import\(", text.replace("// A link", ""))


def test_each_id_is_there_once(text: str) -> None:
    ids = Page(text).ids
    assert sorted(set(ids)) == sorted(ids)


@pytest.mark.parametrize("has_keys", [False, True])
async def test_it_asks_for_a_key_where_the_server_does(make_client: ClientFactory, has_keys: bool) -> None:
    keys = {"api_key_hashes": (hash_key("sk-x"),), "public_paths": ("/docs",)} if has_keys else {}
    text = (await make_client(**keys).get("/docs")).text
    assert ("key" in Page(text).ids) == has_keys


async def test_a_prefix_goes_before_every_path(make_client: ClientFactory) -> None:
    text = (await make_client(root_path="/llm").get("/llm/docs")).text
    paths = re.findall(r'data-path="([^"]*)"', text)
    assert paths
    assert all(path.startswith("/llm/") for path in paths)


def test_text_of_the_document_is_no_html() -> None:
    schema = {"properties": {"<b>": {"type": "string", "description": "<script>alert(1)</script>"}}}
    document = {"info": {"title": "T", "version": "1"}, "paths": {}, "components": {"schemas": {"S": schema}}}
    text = render_docs(document)
    assert "<b>" not in text
    assert "&lt;script&gt;alert" in text


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 16}, "integer, at least 1, at most 16"),
        ({"type": "number", "exclusiveMinimum": 0}, "number, over 0"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string or null"),
        ({"enum": ["a", None]}, '"a" or null'),
        ({"const": "x"}, '"x"'),
        ({"type": "array", "items": {"$ref": "#/components/schemas/Choice"}}, "array of (Choice)"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "object of (number)"),
        ({}, "any"),
    ],
)
def test_types_are_in_words(schema: dict, text: str) -> None:
    assert type_text(schema) == text


def test_fields_tell_whether_they_are_required_and_their_defaults() -> None:
    schema = {
        "required": ["a"],
        "properties": {"a": {"type": "string"}, "b": {"type": "null", "default": None}},
    }
    assert [(each.name, each.is_required, each.default) for each in fields_of(schema)] == [
        ("a", True, ""),
        ("b", False, "null"),
    ]


def test_attributes_of_a_docstring_stand_with_the_fields_only() -> None:
    assert plain_text("Says what.\n\n    Attributes:\n        a: of it.") == "Says what."
