"""The process in which chat templates run: takes one request after the other from a socket and answers each.

It holds itself to limits that Python code cannot get around: address space, CPU time per request, no files.
Its parent (template_process.py) kills it when an answer takes too long; it ends by itself when the
socket is closed, and the kernel kills it when the parent dies. Only jinja2 and the standard library may be
imported here, so that it starts quickly and holds nothing worth taking.

    parent: 8 bytes of length, JSON                {name: source} first, then [name, variables, max_chars]
    child:  an Answer, 8 bytes of length, UTF-8    once when it is ready, then one per request
"""

from __future__ import annotations

import contextlib
import enum
import json
import math
import resource
import socket
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import jinja2

from splitserve.frontend.text.chat.template_engine import BadTemplateError, CompiledTemplate, TooLargeError

# Some error messages quote what the template made.
_MAX_WORDS = 1000
# Imported when jinja2 first needs them, which is too late here.
_LATE_MODULES = ("encodings.unicode_escape", "jinja2.constants", "jinja2.debug", "pprint")


class Answer(enum.Enum):
    """What the first byte of an answer says of the text behind it."""

    TEXT = b"="
    TOO_LARGE = b"+"
    REFUSED = b"!"
    FAILED = b"?"
    NESTED = b"^"
    OUT_OF_MEMORY = b"m"


def serve(connection: socket.socket, max_cpu_s: float) -> None:
    """Answer requests until the socket is closed or memory has run out once.

    Args:
        connection: to the parent.
        max_cpu_s: CPU seconds of one request, at which the kernel ends this process.
    """
    templates: dict[str, CompiledTemplate] = {}
    _send(connection, Answer.TEXT, "")
    while (body := _receive(connection)) is not None:
        _allow_cpu(max_cpu_s)
        answer, text = _answer(body, templates)
        del body
        try:
            _send(connection, answer, text)
        except MemoryError:
            answer = Answer.OUT_OF_MEMORY
            _send(connection, answer, "")
        if answer is Answer.OUT_OF_MEMORY:
            return


def _answer(body: bytearray, templates: dict[str, CompiledTemplate]) -> tuple[Answer, str]:
    try:
        request = json.loads(body)
        if not templates:
            templates |= {name: CompiledTemplate(source, name) for name, source in request.items()}
            return Answer.TEXT, ""
        return Answer.TEXT, _render(request, templates)
    except TooLargeError:
        return Answer.TOO_LARGE, ""
    except (BadTemplateError, jinja2.TemplateError) as error:
        return Answer.REFUSED, str(error)[:_MAX_WORDS]
    except RecursionError:
        return Answer.NESTED, ""
    except MemoryError:
        return Answer.OUT_OF_MEMORY, ""
    except Exception as error:  # a template can raise whatever Python's operators raise
        return Answer.FAILED, f"{type(error).__name__}: {error}"[:_MAX_WORDS]


def _render(request: Sequence[Any], templates: dict[str, CompiledTemplate]) -> str:
    name, variables, max_chars = request
    return templates[name].render(variables, max_chars)


def _receive(connection: socket.socket) -> bytearray | None:
    """Return the next request, None at the end."""
    head = _receive_exactly(connection, 8)
    return None if head is None else _receive_exactly(connection, int.from_bytes(head, "little"))


def _receive_exactly(connection: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        num_read = connection.recv_into(view)
        if not num_read:
            return None
        view = view[num_read:]
    return data


def _send(connection: socket.socket, answer: Answer, text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    head = answer.value + len(data).to_bytes(8, "little")
    connection.sendall(head + data if len(data) < 65536 else head)
    if len(data) >= 65536:
        connection.sendall(data)


def _allow_cpu(seconds: float) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    limit = math.ceil(usage.ru_utime + usage.ru_stime + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _limit(kind: int, value: int) -> None:
    # Some systems know a limit by name only; a lower one that is set already stays.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, (value, value))


def main(arguments: Sequence[str]) -> None:
    """Run.

    Args:
        arguments: descriptor of the socket, bytes of address space, CPU seconds per request.
    """
    fd, max_memory_bytes, max_cpu_s = int(arguments[0]), int(arguments[1]), float(arguments[2])
    connection = socket.socket(fileno=fd)
    for name in _LATE_MODULES:
        import_module(name)
    # Reads the time zone's file.
    time.localtime()
    _limit(resource.RLIMIT_AS, max_memory_bytes)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    # The socket stays open, another file cannot be opened.
    _limit(resource.RLIMIT_NOFILE, 0)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        serve(connection, max_cpu_s)


if __name__ == "__main__":
    main(sys.argv[1:])
