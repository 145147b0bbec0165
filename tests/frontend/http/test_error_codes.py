"""The codes of errors: every one that a client can get stands in the table of docs/api.md, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from splitserve.engine_core.errors import SplitServeError
from splitserve.frontend.http.errors import HttpError, error_body

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("engine_core", "frontend", "worker")
# Calls with a code among their arguments -> its place, counted from 0.
CALLS = {"HttpError": 1, "RouteError": 1, "InvalidRequestError": 2, "RowError": 1, "EndedRequest": 3}
NEVER_ANSWERS = {
    # They end a start, or a process, whose requests then get engine_unavailable or go on elsewhere.
    *(
        "invalid_config",
        "model_load_failed",
        "protocol_error",
        "worker_failed",
        "rank_lost",
        "integrity_error",
    ),
    # The engine hears of it from rank 0.
    "failed_on_rank_0",
    # Answers a call, of which the frontend makes adapter_refused.
    "adapters_fixed",
    # A frontend numbers its requests itself.
    "duplicate_handle",
    # Scripted by tests.
    "simulated_fault",
}


def codes_of(tree: ast.AST) -> Iterator[str]:
    """Literal codes: attributes of error classes, arguments of calls, assignments to `code` of an error."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Name("code") | ast.Attribute(attr="code")], value=ast.Constant(str(code))
            ):
                yield code
            case ast.Call(func=ast.Name(name), args=args) if name in CALLS and len(args) > CALLS[name]:
                place = args[CALLS[name]]
                # A choice between two is written in place.
                for option in (place.body, place.orelse) if isinstance(place, ast.IfExp) else (place,):
                    if isinstance(option, ast.Constant) and isinstance(option.value, str):
                        yield option.value
            case ast.keyword(arg="code" | "error_code", value=ast.Constant(str(code))) if code:
                yield code


def raised() -> set[str]:
    """All codes that the source names."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {code for path in paths for code in codes_of(ast.parse(path.read_text()))}


def documented() -> dict[str, set[int]]:
    """The codes of the table, with their statuses."""
    found: dict[str, set[int]] = {}
    for status, codes in re.findall(
        r"^\| (\d{3}) \|[^|]*\| ([^|]*) \|", (ROOT / "docs/api.md").read_text(), re.MULTILINE
    ):
        for code in re.findall(r"`(\w+)`", codes):
            found.setdefault(code, set()).add(int(status))
    return found


def test_the_walk_sees_every_way_to_name_a_code() -> None:
    assert {
        "invalid_api_key",
        "unknown_route",
        "unsupported_parameter",
        "numerical_error",
        "no_token_left",
        "queue_timeout",
        "out_of_memory",
        "model_not_found",
    } <= raised()


def test_every_code_that_is_raised_is_documented_and_every_documented_one_is_raised() -> None:
    assert raised() - NEVER_ANSWERS == documented().keys()
    assert raised() >= NEVER_ANSWERS


def all_errors(kind: type[SplitServeError]) -> Iterator[type[SplitServeError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from all_errors(child)


def test_the_statuses_of_error_classes_are_the_documented_ones() -> None:
    table = documented()
    for kind in all_errors(SplitServeError):
        if kind.code in table and kind.__module__.startswith("splitserve.") and kind is not HttpError:
            assert kind.status in table[kind.code], kind


@pytest.mark.parametrize(
    ("code", "status"),
    [(code, status) for code, statuses in documented().items() for status in statuses if status >= 500],
)
def test_an_error_of_the_server_has_words_of_its_own_and_none_of_the_inside(code: str, status: int) -> None:
    error = HttpError(status, code, "secret: /path of the engine")
    message = error_body(error)[1].error.message
    assert "secret" not in message
    assert (message == "Internal server error.") == (code == "internal_error")
