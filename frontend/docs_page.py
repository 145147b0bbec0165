"""The page /docs: the OpenAPI document for people, whole in one response and nothing from elsewhere."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

Json = dict[str, Any]
TEMPLATE = Path(__file__).with_name("docs_page.html")
_LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "over",
    "maximum": "at most",
    "exclusiveMaximum": "under",
}


class Field(NamedTuple):
    """One field of a schema as the page shows it; `default` is JSON, "" where there is none."""

    name: str
    type: str
    is_required: bool
    default: str
    description: str


class DocsPage:
    """Renders the document once per prefix, away from the event loop."""

    def __init__(self, openapi: Callable[[], Json]) -> None:
        """Args: openapi returns the document."""
        self._openapi = openapi
        # By the prefix that the operator has set, so there is one.
        self._pages: dict[str, str] = {}

    async def show(self, request: Request) -> Response:
        """Answer GET /docs."""
        prefix = request.scope.get("root_path", "")
        if prefix not in self._pages:
            self._pages[prefix] = await asyncio.to_thread(render_docs, self._openapi(), prefix)
        page = self._pages[prefix]
        headers = {"content-security-policy": policy_of(page), "x-content-type-options": "nosniff"}
        return HTMLResponse(page, headers=headers)


def render_docs(document: Json, prefix: str = "") -> str:
    """Return the page.

    Args:
        document: OpenAPI 3.1.
        prefix: path under which a proxy publishes the server.
    """
    # Nobody else in this process needs it.
    import jinja2

    template = jinja2.Template(TEMPLATE.read_text(), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    schemas = document["components"]["schemas"]
    page: str = template.render(
        info=document["info"],
        prefix=prefix,
        has_keys="security" in document,
        groups=_group(document["paths"]),
        schemas={name: schemas[name] for name in sorted(schemas)},
        fields=fields_of,
        text=plain_text,
        struct=_struct_name,
    )
    return page


def policy_of(page: str) -> str:
    """Return the policy under which the page's own script and style run, by their hashes, and no others."""
    hashes = {}
    for tag in ("script", "style"):
        texts = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        hashes[tag] = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _group(paths: Json) -> dict[str, list[Json]]:
    """Return all operations by their tag, each with its path and method."""
    groups: dict[str, list[Json]] = {}
    for path, methods in paths.items():
        for method, operation in methods.items():
            entry = {**operation, "path": path, "method": method.upper()}
            groups.setdefault(operation["tags"][0], []).append(entry)
    return groups


def fields_of(schema: Json) -> list[Field]:
    """Return the fields of an object's schema in their order."""
    required = schema.get("required", ())
    return [
        Field(
            name,
            type_text(each),
            name in required,
            json.dumps(each["default"]) if "default" in each else "",
            plain_text(each.get("description", "")),
        )
        for name, each in schema.get("properties", {}).items()
    ]


def type_text(schema: Json) -> str:
    """Return the type that a schema describes, in words."""
    if "$ref" in schema:
        return _struct_name(schema)
    if "anyOf" in schema:
        text = " or ".join(dict.fromkeys(type_text(each) for each in schema["anyOf"]))
    elif "const" in schema or "enum" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        text = " or ".join(json.dumps(value) for value in values)
    elif schema.get("type") == "array":
        text = f"array of ({type_text(schema.get('items', {}))})"
    elif schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        text = f"object of ({type_text(schema['additionalProperties'])})"
    else:
        text = str(schema.get("type", "any"))
    limits = [f"{words} {schema[key]:g}" for key, words in _LIMITS.items() if key in schema]
    return ", ".join([text, *limits])


def _struct_name(schema: Json) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def plain_text(description: str) -> str:
    """Return the text of a docstring without its section of attributes, which stands with the fields."""
    return inspect.cleandoc(description).partition("\n\nAttributes:")[0]
