"""One process that renders chat templates, as its parent sees it.

start()  -> ready, templates compiled
render() -> text, or a refusal that is the request's; the process goes on
         -> ProcessTimeoutError, ProcessEndedError: it is killed, and a new one has to be started
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from splitserve.engine_core.errors import InvalidRequestError, ModelLoadError
from splitserve.frontend.text.chat.control_tokens import MARK
from splitserve.frontend.text.limited.process import (
    MAX_WORDS_BYTES,
    LimitedProcess,
    ProcessLimits,
    ProcessTimeoutError,
)

# What a template makes of it has to fit into the memory of the process, too.
MAX_REQUEST_BYTES = 64 * 2**20
# Of template_child.py, which is not imported here: that would bring jinja2 into every process.
_CHILD = "splitserve.frontend.text.chat.template_child"
_TEXT, _TOO_LARGE, _REFUSED, _NESTED, _OUT_OF_MEMORY = b"=", b"+", b"!", b"^", b"m"
_MAX_UTF8_BYTES = 4


@dataclass(slots=True, frozen=True)
class RenderLimits:
    """What a template may take.

    Attributes:
        render_s: seconds for one rendering.
        compile_s: seconds for compiling all templates of a checkpoint.
        start_s: seconds until the process is ready to compile; a busy machine may need many.
        memory_bytes: address space of the process, interpreter and messages included.
    """

    render_s: float = 5.0
    compile_s: float = 20.0
    start_s: float = 60.0
    memory_bytes: int = 512 * 2**20


class TemplateTooLargeError(Exception):
    """The output is over the limit that the request gave."""


class TemplateTimeoutError(InvalidRequestError):
    """It took longer than the limit."""


class TemplateProcess:
    """One process; used by the one thread that starts it."""

    def __init__(self, sources: Mapping[str, str], limits: RenderLimits) -> None:
        """Start it and have it compile the templates, given by name.

        Raises:
            ModelLoadError: a template is no jinja2 template, or compiling it takes more than the limits.
            ProcessEndedError: it cannot be started, or ends at once.
        """
        self._limits = limits
        cpu_s = max(limits.render_s, limits.compile_s)
        self._process = LimitedProcess(_CHILD, ProcessLimits(limits.start_s, cpu_s, limits.memory_bytes))
        try:
            self._compile(sources)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def render(self, name: str, variables: Mapping[str, object], max_chars: int) -> str:
        """Render a template with plain JSON values.

        Args:
            name: of the template.
            variables: what it sees.
            max_chars: most characters it may put out.

        Raises:
            InvalidRequestError: the template refuses its input (in its own words), fails on it, or takes too
                much memory; or a value is not JSON, or all have more than 64 MiB.
            TemplateTooLargeError: the output is over max_chars.
            ProcessTimeoutError: it takes too long; kill() the process.
            ProcessEndedError: kill() the process.
        """
        body = _to_json([name, variables, max_chars])
        if len(body) > MAX_REQUEST_BYTES:
            raise InvalidRequestError(
                f"the messages have {len(body)} bytes as JSON, more than {MAX_REQUEST_BYTES}",
                "messages",
            )
        kind, text = self._process.exchange(body, max_chars * _MAX_UTF8_BYTES, self._limits.render_s)
        if kind == _TEXT:
            return text
        if kind == _TOO_LARGE:
            raise TemplateTooLargeError
        raise InvalidRequestError(self._words(kind, text.replace(MARK, "")), "messages")

    def end(self) -> None:
        """Make it end, whatever it is doing; for any thread. kill() is still to be called."""
        self._process.end()

    def kill(self) -> None:
        """End it and release what it holds; safe to call twice."""
        self._process.kill()

    def _compile(self, sources: Mapping[str, str]) -> None:
        try:
            kind, text = self._process.exchange(_to_json(sources), MAX_WORDS_BYTES, self._limits.compile_s)
        except ProcessTimeoutError:
            raise ModelLoadError(
                f"compiling the chat template took longer than {self._limits.compile_s:g} s"
            ) from None
        if kind == _NESTED:
            raise ModelLoadError("the chat template is nested too deeply")
        if kind != _TEXT:
            raise ModelLoadError(text if kind == _REFUSED else self._words(kind, text))

    def _words(self, kind: bytes, text: str) -> str:
        if kind == _NESTED:
            return "the messages are nested too deeply"
        if kind == _OUT_OF_MEMORY:
            return f"the chat template used more than {self._limits.memory_bytes // 2**20} MiB of memory"
        verb = "refused" if kind == _REFUSED else "failed on"
        return f"the chat template {verb} the messages: {text}"


def _to_json(value: object) -> bytes:
    try:
        return json.dumps(value).encode()
    except RecursionError:
        raise InvalidRequestError("the messages are nested too deeply", "messages") from None
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"the messages must be JSON values: {error}", "messages") from None
