"""Compiles and runs chat templates in jinja2's sandbox as transformers sets it up, within limits.

The template is the operator's, but what it loops over is the client's. So each turn of a loop and each piece
of output looks at the clock, and the output is counted as it grows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine_core.errors import InvalidRequestError, ModelLoadError

MAX_RENDER_S = 5.0
MAX_TEMPLATE_BYTES = 2**20
_CHECK = "_splitserve_check"


class _GenerationTag(jinja2.ext.Extension):
    """{% generation %} marks the assistant's words for training; here it only opens a scope, as there."""

    tags = {"generation"}  # noqa: RUF012 -- jinja2's interface

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class TooLargeError(Exception):
    """The output is over its limit."""


class _Limits:
    """Clock and size of one rendering."""

    def __init__(self, max_chars: int, max_render_s: float) -> None:
        self._max_chars = max_chars
        self._max_render_s = max_render_s
        self._deadline_s = time.monotonic() + max_render_s
        self._num_chars = 0

    def check_time(self) -> str:
        if time.monotonic() > self._deadline_s:
            raise InvalidRequestError(
                f"the chat template took longer than {self._max_render_s:g} s", "messages"
            )
        return ""

    def count(self, text: str) -> str:
        self.check_time()
        self._num_chars += len(text)
        if self._num_chars > self._max_chars:
            raise TooLargeError
        return text


class CompiledTemplate:
    """One compiled template; safe to call from several threads."""

    def __init__(self, source: str, name: str) -> None:
        """Compile.

        Raises:
            ModelLoadError: the source is no jinja2 template; names it, the line and the fault.
        """
        if len(source) > MAX_TEMPLATE_BYTES:
            raise ModelLoadError(f"{name} is over its limit of {MAX_TEMPLATE_BYTES} bytes")
        self.source = source
        environment = _make_environment()
        try:
            tree = environment.parse(source)
            for loop in tree.find_all(nodes.For):
                # Names that begin with an underscore cannot come from a client: see render().
                call = nodes.Call(nodes.Name(_CHECK, "load"), [], [], None, None)
                loop.body.insert(0, nodes.ExprStmt(call).set_lineno(loop.lineno))
            self._template = environment.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            raise ModelLoadError(f"{name} line {error.lineno}: {error.message}") from None
        except RecursionError:
            raise ModelLoadError(f"{name} is nested too deeply") from None

    def render(
        self, variables: Mapping[str, object], max_chars: int, max_render_s: float = MAX_RENDER_S
    ) -> str:
        """Render.

        Args:
            variables: what the template sees; plain JSON types only.
            max_chars: most characters it may put out.
            max_render_s: most seconds it may take.

        Raises:
            InvalidRequestError: the template refuses its input (in its own words), fails or takes too long.
            TooLargeError: it puts out more than max_chars.
        """
        limits = _Limits(max_chars, max_render_s)
        try:
            pieces = self._template.generate({**variables, _CHECK: limits.check_time})
            return "".join([limits.count(piece) for piece in pieces])
        except (InvalidRequestError, TooLargeError):
            raise
        except jinja2.TemplateError as error:
            raise InvalidRequestError(
                f"the chat template refused the messages: {error}", "messages"
            ) from None
        except RecursionError:
            raise InvalidRequestError("the messages are nested too deeply", "messages") from None
        except Exception as error:  # a template can raise whatever Python's operators raise
            raise InvalidRequestError(
                f"the chat template failed on the messages: {type(error).__name__}: {error}", "messages"
            ) from None


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
