"""What does instructor make of the server's answers? A program that prints it as JSON, mode by mode.

    python -m tests.system.clients.instructor_client URL LOGIT_BIAS

It is a process of its own, as instructor needs an older version of OpenAI's SDK than the other tests use.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import instructor
from openai import OpenAI

from tests.system.clients.weather import MAX_TOKENS, USER, Note, Place


def answers(url: str, empty_object: dict[str, int]) -> dict[str, Any]:
    """Return an answer of each mode, or the error that it ended with."""
    found: dict[str, Any] = {}

    def ask(name: str, mode: instructor.Mode, form: type, *, streams: bool = False, **options: Any) -> None:
        with OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=60) as sdk:
            client = instructor.from_openai(sdk, mode=mode)
            model = sdk.models.list().data[0].id
            fields = {"model": model, "messages": [USER], "response_model": form, "max_retries": 0, **options}
            try:
                if streams:
                    answer = list(client.chat.completions.create_partial(**fields))[-1]
                else:
                    answer = client.chat.completions.create(**fields)
            except Exception as error:
                found[name] = repr(error)
            else:
                found[name] = answer.model_dump()

    short: dict[str, Any] = {"max_tokens": MAX_TOKENS}
    ask("TOOLS", instructor.Mode.TOOLS, Place, **short)
    ask("TOOLS streamed", instructor.Mode.TOOLS, Place, streams=True, **short)
    ask("TOOLS_STRICT", instructor.Mode.TOOLS_STRICT, Place, **short)
    ask("JSON_SCHEMA", instructor.Mode.JSON_SCHEMA, Place, **short)
    ask("JSON_SCHEMA streamed", instructor.Mode.JSON_SCHEMA, Place, streams=True, **short)
    ask("JSON", instructor.Mode.JSON, Note, logit_bias=empty_object, **short)
    ask("RESPONSES_TOOLS", instructor.Mode.RESPONSES_TOOLS, Place, max_output_tokens=MAX_TOKENS)
    return found


if __name__ == "__main__":
    json.dump(answers(sys.argv[1], json.loads(sys.argv[2])), sys.stdout)
