"""What the tests of client libraries ask for: questions, a tool, and a form for the answer.

Nothing has fields but those that are named, and each has a few values, so that an output that is held to them
ends, however little the model knows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel

# A folder with packages of its own, which `make test` installs.
INSTRUCTOR = Path(sys.prefix) / "instructor"

QUESTION = "What is the weather in Paris?"
USER = {"role": "user", "content": QUESTION}
COUNT = "Count from 1 to 10."
MAX_TOKENS = 100

City = Literal["Paris", "Rome"]
RESULT = json.dumps({"temperature": 21})


class Arguments(BaseModel, extra="forbid"):
    """Of get_weather."""

    city: City


def get_weather(city: City) -> str:
    """Get the weather of a city."""
    assert city in get_args(City)
    return RESULT


SCHEMA: dict[str, Any] = Arguments.model_json_schema()
FUNCTION: dict[str, Any] = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": SCHEMA,
}
TOOL: dict[str, Any] = {"type": "function", "function": FUNCTION}


class Place(BaseModel, extra="forbid"):
    """A place."""

    city: City
    is_capital: bool


class Note(BaseModel):
    """Some JSON object."""

    text: str = ""
