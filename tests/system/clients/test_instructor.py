"""instructor over OpenAI's API: a model's fields as arguments of a tool, as JSON, and as JSON of a schema."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.system.clients.weather import INSTRUCTOR, Note, Place
from tests.system.processes import ROOT, Server

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(not INSTRUCTOR.is_dir(), reason="instructor is not installed"),
]


@pytest.fixture(scope="module")
def answers(server: Server, empty_object: dict[str, int]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.system.clients.instructor_client"]
    found = subprocess.run(
        [*command, server.base_url, json.dumps(empty_object)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(INSTRUCTOR)},
        stdout=subprocess.PIPE,
        check=True,
        timeout=100,
    )
    by_mode: dict[str, Any] = json.loads(found.stdout)
    return by_mode


@pytest.mark.parametrize(
    "mode",
    [
        "TOOLS",
        "TOOLS streamed",
        "TOOLS_STRICT",
        "JSON_SCHEMA",
        "JSON_SCHEMA streamed",
        "RESPONSES_TOOLS",
    ],
)
def test_an_answer_is_of_its_model(answers: dict[str, Any], mode: str) -> None:
    assert Place.model_validate(answers[mode])


def test_json_mode_gives_an_object(answers: dict[str, Any]) -> None:
    assert answers["JSON"] == Note().model_dump()
