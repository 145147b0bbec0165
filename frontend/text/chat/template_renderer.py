"""Renders the chat templates of one checkpoint: one rendering after the other, in a process of its own.

Templates come with a model's files, and what one expression of theirs may cost has no bound (`10**10**9`). So
they run in a process (template_child.py). A rendering that takes too long or too much memory is refused and
the process replaced; who waits behind it has its turn on the new one (frontend.text.limited.turns).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from splitserve.engine_core.errors import InvalidRequestError, ModelLoadError
from splitserve.frontend.text.chat.template_process import (
    RenderLimits,
    TemplateProcess,
    TemplateTimeoutError,
)
from splitserve.frontend.text.limited.process import ProcessEndedError, ProcessTimeoutError
from splitserve.frontend.text.limited.turns import ProcessQueue, Turns

T = TypeVar("T")
Render = Callable[[str, Mapping[str, object], int], str]

MAX_TEMPLATE_BYTES = 2**20


class TemplateRenderer:
    """Renders for any thread."""

    def __init__(self, sources: Mapping[str, str], limits: RenderLimits | None = None) -> None:
        """Start the process and compile templates, given by name.

        Raises:
            ModelLoadError: one is too long or no jinja2 template, or the process cannot be started.
        """
        for name, source in sources.items():
            if len(source) > MAX_TEMPLATE_BYTES:
                raise ModelLoadError(
                    f"the chat template {name[:100]!r} is larger than the limit of {MAX_TEMPLATE_BYTES} bytes"
                )
        make = partial(TemplateProcess, dict(sources), limits or RenderLimits())
        self._queue = ProcessQueue(make, "chat template")
        try:
            self._queue.start()
        except ProcessEndedError as error:
            raise ModelLoadError(f"the chat template process failed: {error}") from None

    @property
    def pid(self) -> int:
        """Id of the process, 0 if there is none now."""
        return self._queue.pid

    def submit(self, job: Callable[[Render], T]) -> Future[T]:
        """Run a job that renders, when it is its turn; the future has what it returns or raises.

        Args:
            job: called in another thread with a function that takes the template's name, the variables and
                the most characters of output. That raises as TemplateProcess.render() does, but if it took
                too long or the process ended twice an InvalidRequestError, and if there can be none an
                EngineUnavailableError.

        Raises:
            OverloadedError: 4096 jobs wait.
            EngineUnavailableError: this is closed.
        """
        return self._queue.submit(lambda turns: job(partial(_render, turns)))

    def close(self) -> None:
        """Kill the process and cancel what waits; safe to call twice."""
        self._queue.close()


def _render(turns: Turns[TemplateProcess], name: str, variables: Mapping[str, object], max_chars: int) -> str:
    try:
        return turns.run(lambda process: process.render(name, variables, max_chars))
    except ProcessTimeoutError as error:
        raise TemplateTimeoutError(f"the chat template {error}", "messages") from None
    except ProcessEndedError as error:
        raise InvalidRequestError(
            f"the chat template crashed its renderer twice: {error}", "messages"
        ) from None
