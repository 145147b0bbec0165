"""Compiles and runs chat templates in jinja2's sandbox, set up as transformers does it.

The sandbox keeps a template away from files and code, not from time and memory: one expression can ask for
all of both. So this runs only in a process of its own (template_child.py) and imports only jinja2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _GenerationTag(jinja2.ext.Extension):
    """{% generation %} marks the assistant's words for training; here it only opens a scope, as there."""

    tags = {"generation"}  # noqa: RUF012 -- jinja2's interface

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class BadTemplateError(Exception):
    """The source is no jinja2 template; the message names it, the line and the fault."""


class TooLargeError(Exception):
    """The output is over its limit."""


class CompiledTemplate:
    """One compiled template."""

    def __init__(self, source: str, name: str) -> None:
        """Compile; what is constant in it is computed here.

        Raises:
            BadTemplateError: the source is no jinja2 template.
        """
        try:
            self._template = _make_environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            place = f"the chat template {name!r} line {error.lineno}"
            raise BadTemplateError(f"{place}: {error.message}") from None
        except RecursionError:
            raise BadTemplateError(f"the chat template {name!r} is nested too deeply") from None

    def render(self, variables: Mapping[str, object], max_chars: int) -> str:
        """Render.

        Args:
            variables: what the template sees; plain JSON types only.
            max_chars: most characters it may put out.

        Raises:
            TooLargeError: it puts out more than max_chars.
            jinja2.TemplateError: the template refuses its input, in its own words.
            Exception: whatever else Python's operators raise.
        """
        pieces, num_chars = [], 0
        for piece in self._template.generate(variables):
            num_chars += len(piece)
            if num_chars > max_chars:
                raise TooLargeError
            pieces.append(piece)
        return "".join(pieces)


def _make_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes for HTML.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
