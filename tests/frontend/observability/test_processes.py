"""Traces, logs and the log level of a whole server: two frontends, an engine, a client with a span."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine_core.launcher.serving import Serving, serving
from tests.frontend.observability.collector import SAMPLED, TRACE_ID, Collector, collecting

pytestmark = pytest.mark.system
ADMIN = "an-admin-key-of-some-length"
STEP_MS = 20


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def server(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Two frontends, which are separate processes and share the address."""
    keys = Path(tmp_path_factory.mktemp("keys")) / "admin"
    keys.write_text(ADMIN)
    observed = ["--otlp-traces-endpoint", collector.url, "--log-requests", "full", "--log-format", "json"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        patched.setenv("OTEL_SERVICE_NAME", "my-service")
        flags = [
            "--api-server-count",
            "2",
            "--admin-key-file",
            str(keys),
            "--simulated-step-ms",
            str(STEP_MS),
        ]
        with serving(*flags, *observed) as server:
            server.wait_all_ready(server.url(), 2)
            yield server


def events(server: Serving) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.output.splitlines() if line.startswith('{"time"')]


def test_a_trace_goes_from_the_client_through_frontend_and_engine(
    server: Serving, collector: Collector
) -> None:
    body = {"prompt": "private words", "max_tokens": 5, "stream": True, "ignore_eos": True}
    headers = SAMPLED | {"x-request-id": "traced", "authorization": "Bearer hush"}
    assert httpx.post(f"{server.url()}/v1/completions", json=body, headers=headers).status_code == 200
    found = {span.name: span for span in collector.wait_for(1)}
    assert found.keys() == {
        "POST /v1/completions",
        "tokenize",
        "text_completion tiny",
        "queue",
        "prefill",
        "decode",
    }
    assert {span.trace_id for span in found.values()} == {TRACE_ID}
    assert found["decode"].resource["service.name"] == "my-service"
    # Five tokens: four steps after the first.
    decode_ms = (found["decode"].end_ns - found["decode"].start_ns) / 1e6
    assert decode_ms >= 3 * STEP_MS
    assert found["prefill"].end_ns - found["prefill"].start_ns >= STEP_MS * 1e6 / 2
    server.wait_for(r'"event": "request", "request_id": "traced"[^\n]*\n')
    server.wait_for(r'"event": "request ended", "request_id": "cmpl-traced[^\n]*\n')
    by_name = {each["event"]: each for each in events(server) if each.get("request_id") == "traced"}
    assert by_name["request"]["trace_id"] == TRACE_ID
    assert json.loads(by_name["request body"]["body"])["prompt"] == "private words"
    assert by_name["response text"]["choice"] == 0
    assert "hush" not in server.output


def test_one_call_changes_the_log_level_of_all_processes(server: Serving) -> None:
    def change(level: str) -> Any:
        answer = httpx.post(
            f"{server.url()}/debug/log_level",
            json={"level": level},
            headers={"authorization": f"Bearer {ADMIN}"},
        )
        return answer.json()

    assert change("error") == {"level": "error", "engines": {"engine-0": True}}
    # Each of the three says so once.
    server.wait_for(r'(?s)(?:"event": "log level"[^\n]*\n.*){3}')
    answer = httpx.post(f"{server.url()}/v1/completions", json={"prompt": "x", "max_tokens": 2})
    assert answer.status_code == 200
    assert change("info")["level"] == "info"
    server.wait_for(r'(?s)(?:"event": "log level"[^\n]*\n.*){6}')
    said = [each for each in events(server) if each["event"] == "log level"]
    assert [each["level"] for each in said] == ["info"] * 3 + ["error"] * 3
    between = server.output.split('"event": "log level"')[3].split("\n")[1:]
    assert not [line for line in between if re.search(r'"level": "info"', line)]
