"""One process that renders chat templates, as its parent sees it: started, asked, given up on.

start()  -> ready, templates compiled
render() -> text, or a refusal that is the request's; the process goes on
         -> TemplateTimeoutError, ProcessEndedError: it is killed, and a new one has to be started
"""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from splitserve.engine_core.errors import InvalidRequestError, ModelLoadError
from splitserve.engine_core.kept.processes import is_stopped
from splitserve.engine_core.process.children import Child, describe_exit, python_module
from splitserve.frontend.text.chat.control_tokens import MARK

# What a template makes of it has to fit into the memory of the process, too.
MAX_REQUEST_BYTES = 64 * 2**20
_REAP_S = 10.0
# Of template_child.py, which is not imported here: that would bring jinja2 into every process.
_TEXT, _TOO_LARGE, _REFUSED, _FAILED, _NESTED, _OUT_OF_MEMORY = b"=", b"+", b"!", b"?", b"^", b"m"
_MAX_UTF8_BYTES = 4
_MAX_WORDS_BYTES = 65536


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


class ProcessEndedError(Exception):
    """The process ended, was stopped, or never was; the message says how. Perhaps the template's doing."""


class TemplateProcess:
    """One process; used by the one thread that starts it, as the kernel ends it together with that."""

    def __init__(self, sources: Mapping[str, str], limits: RenderLimits) -> None:
        """Start it and have it compile the templates, given by name.

        Raises:
            ModelLoadError: a template is no jinja2 template, or compiling it takes more than the limits.
            ProcessEndedError: it cannot be started, or ends at once.
        """
        self._limits = limits
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._child = _start(theirs.fileno(), limits)
        except OSError as error:
            self._socket.close()
            raise ProcessEndedError(f"it cannot be started: {error}") from None
        try:
            self._await_start()
            self._compile(sources)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

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
            TemplateTimeoutError: it takes too long; kill() the process.
            ProcessEndedError: kill() the process.
        """
        body = _to_json([name, variables, max_chars])
        if len(body) > MAX_REQUEST_BYTES:
            raise InvalidRequestError(
                f"the messages have {len(body)} bytes as JSON, more than {MAX_REQUEST_BYTES}",
                "messages",
            )
        kind, text = self._exchange(body, max_chars * _MAX_UTF8_BYTES, self._limits.render_s)
        if kind == _TEXT:
            return text
        if kind == _TOO_LARGE:
            raise TemplateTooLargeError
        raise InvalidRequestError(self._words(kind, text.replace(MARK, "")), "messages")

    def end(self) -> None:
        """Make it end, whatever it is doing; for any thread. kill() is still to be called."""
        self._child.signal(signal.SIGKILL)

    def kill(self) -> None:
        """End it and release what it holds; safe to call twice."""
        self.end()
        self._socket.close()
        self._child.wait(_REAP_S)
        self._child.close()

    def _await_start(self) -> None:
        try:
            self._receive(_MAX_WORDS_BYTES, time.monotonic() + self._limits.start_s)
        except TemplateTimeoutError:
            raise ProcessEndedError(f"it did not start within {self._limits.start_s:g} s") from None

    def _compile(self, sources: Mapping[str, str]) -> None:
        try:
            kind, text = self._exchange(_to_json(sources), _MAX_WORDS_BYTES, self._limits.compile_s)
        except TemplateTimeoutError:
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

    def _exchange(self, body: bytes, max_answer_bytes: int, timeout_s: float) -> tuple[bytes, str]:
        deadline_s = time.monotonic() + timeout_s
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(len(body).to_bytes(8, "little") + body)
        except TimeoutError:
            raise self._timeout() from None
        except OSError:
            raise self._ended() from None
        return self._receive(max(max_answer_bytes, _MAX_WORDS_BYTES), deadline_s)

    def _receive(self, max_bytes: int, deadline_s: float) -> tuple[bytes, str]:
        head = self._receive_exactly(9, deadline_s)
        size = int.from_bytes(head[1:], "little")
        if size > max_bytes:
            raise ProcessEndedError(f"it answered with {size} bytes")
        data = self._receive_exactly(size, deadline_s)
        try:
            return bytes(head[:1]), data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise ProcessEndedError("its response was not text") from None

    def _receive_exactly(self, size: int, deadline_s: float) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                self._socket.settimeout(max(deadline_s - time.monotonic(), 1e-3))
                num_read = self._socket.recv_into(view)
            except TimeoutError:
                raise self._timeout() from None
            except OSError:
                num_read = 0
            if not num_read:
                raise self._ended()
            view = view[num_read:]
        return data

    def _timeout(self) -> TemplateTimeoutError | ProcessEndedError:
        if is_stopped(self._child.pid):
            # That is no template's doing.
            return ProcessEndedError("it was stopped by a signal")
        words = f"the chat template took longer than {self._limits.render_s:g} s"
        return TemplateTimeoutError(words, "messages")

    def _ended(self) -> ProcessEndedError:
        code = self._child.wait(_REAP_S)
        return ProcessEndedError("it hung up" if code is None else describe_exit(code))


def _start(fd: int, limits: RenderLimits) -> Child:
    # The kernel's limit is for a process that nobody kills any more; it counts in whole seconds.
    max_cpu_s = max(limits.render_s, limits.compile_s) + 1
    argv = python_module("splitserve.frontend.text.chat.template_child")
    return Child(
        [*argv, str(fd), str(limits.memory_bytes), str(max_cpu_s)],
        death_signal=signal.SIGKILL,
        pass_fds=(fd,),
    )


def _to_json(value: object) -> bytes:
    try:
        return json.dumps(value).encode()
    except RecursionError:
        raise InvalidRequestError("the messages are nested too deeply", "messages") from None
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"the messages must be JSON values: {error}", "messages") from None
