"""What a wheel says of the project."""

from __future__ import annotations

import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text())["project"]
PYTHON = "Programming Language :: Python :: "


def test_the_oldest_python_named_is_the_oldest_that_is_taken() -> None:
    named = [c.removeprefix(PYTHON) for c in PROJECT["classifiers"] if c.startswith(f"{PYTHON}3.")]
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert oldest == named[0] or oldest.startswith(f"{named[0]}.")


def test_the_licence_is_an_expression_which_leaves_no_room_for_a_classifier() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert not [c for c in PROJECT["classifiers"] if c.startswith("License ::")]
