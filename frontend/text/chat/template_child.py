"""The process in which chat templates run.

Only jinja2 and the standard library may be imported here, so that it starts quickly and holds nothing worth
taking. Requests are JSON: {name: source} first, then [name, variables, max_chars].
"""

from __future__ import annotations

import enum
import json
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import jinja2

from splitserve.frontend.text.chat.template_engine import BadTemplateError, CompiledTemplate, TooLargeError
from splitserve.frontend.text.limited import child

# Some error messages quote what the template made.
_MAX_WORDS = 1000
# Imported when jinja2 first needs them, which is too late here.
_LATE_MODULES = ("encodings.unicode_escape", "jinja2.constants", "jinja2.debug", "pprint")


class Answer(enum.Enum):
    """What the first byte of an answer says of the text behind it."""

    TEXT = child.READY
    TOO_LARGE = b"+"
    REFUSED = b"!"
    FAILED = b"?"
    NESTED = b"^"
    OUT_OF_MEMORY = child.OUT_OF_MEMORY


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


def main(arguments: Sequence[str]) -> None:
    """Run with the arguments of frontend.text.limited.child.main()."""
    for name in _LATE_MODULES:
        import_module(name)
    # Reads the time zone's file.
    time.localtime()
    templates: dict[str, CompiledTemplate] = {}

    def answer(body: bytearray) -> tuple[bytes, str]:
        kind, text = _answer(body, templates)
        return kind.value, text

    child.main(arguments, answer)


if __name__ == "__main__":
    main(sys.argv[1:])
