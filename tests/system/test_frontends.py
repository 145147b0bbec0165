"""Frontends come and go: several over one engine, started before, after or meanwhile, or killed."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.system.processes import Server, engine, frontend, wait_ready

pytestmark = [pytest.mark.system, pytest.mark.slow]

STORY = [{"role": "user", "content": "Count from 1 to 20."}]


def chat(url: str, **options: Any) -> Any:
    return OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=60).chat.completions.create(
        model=OpenAI(base_url=f"{url}/v1", api_key="x").models.list().data[0].id, messages=STORY, **options
    )


def samples(url: str, name: str, label: str = "") -> list[float]:
    lines = httpx.get(f"{url}/metrics", timeout=10).text.splitlines()
    return [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name) and label in line]


def metric(url: str, name: str) -> float:
    values = samples(url, name)
    assert values, f"{name} is not among the metrics"
    return sum(values)


def wait_for(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.05)


def test_frontends_join_and_one_dies_while_the_others_stream_on(folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        address = f"ipc://{folder}/engine.sock"
        url_1, first = stack.enter_context(frontend(folder, address))
        assert httpx_until_up(f"{url_1}/live")
        assert httpx.get(f"{url_1}/ready").status_code == 503, "a frontend may start before its engine"
        _, core = stack.enter_context(engine(folder))
        url_2, second = stack.enter_context(frontend(folder, address))
        wait_ready(url_1, core, first)
        wait_ready(url_2, core, second)
        expected = chat(url_1, temperature=0).choices[0].message.content
        assert chat(url_2, temperature=0).choices[0].message.content == expected

        long = {"temperature": 0, "max_tokens": 300, "extra_body": {"ignore_eos": True}}
        reference = chat(url_2, **long).choices[0].message.content
        texts: list[str] = []
        begun, doomed_begun = threading.Event(), threading.Event()

        def read_survivor() -> None:
            text = ""
            for chunk in chat(url_2, stream=True, **long):
                begun.set()
                text += chunk.choices[0].delta.content or ""
            texts.append(text)

        def read_doomed() -> None:
            with contextlib.suppress(Exception):
                for _ in chat(url_1, stream=True, **{**long, "max_tokens": 1500}):
                    doomed_begun.set()

        threads = [threading.Thread(target=read_survivor), threading.Thread(target=read_doomed)]
        for thread in threads:
            thread.start()
        assert begun.wait(60)
        assert doomed_begun.wait(60)
        first.popen.send_signal(signal.SIGKILL)
        url_3, third = stack.enter_context(frontend(folder, address))
        wait_ready(url_3, core, third)
        assert chat(url_3, temperature=0).choices[0].message.content == expected
        for thread in threads:
            thread.join(60)
        assert texts == [reference]
        wait_for(lambda: metric(url_2, "splitserve:num_requests_running{") == 0)


def httpx_until_up(url: str) -> bool:
    def up() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(url, timeout=5).status_code == 200
        return False

    wait_for(up)
    return True


# So many tokens that no machine is done with them before the client is gone.
LONG = {"messages": STORY, "max_tokens": 1500, "n": 16}


def num_aborted(url: str) -> float:
    return sum(samples(url, "splitserve:request_success_total", 'finished_reason="abort"'))


def hang_up(url: str, leave: Callable[[], None]) -> None:
    """Leave once the engine works, and expect that it stops soon and counts what did not end by itself."""
    before = num_aborted(url)
    wait_for(lambda: metric(url, "splitserve:num_requests_running{") > 0)
    leave()
    wait_for(lambda: metric(url, "splitserve:num_requests_running{") == 0)
    wait_for(lambda: metric(url, "splitserve:kv_cache_usage_perc{") == 0)
    assert num_aborted(url) > before


def test_a_client_that_hangs_up_frees_its_blocks(server: Server, client: OpenAI, model: str) -> None:
    stream = client.chat.completions.create(model=model, stream=True, **LONG, extra_body={"ignore_eos": True})
    next(iter(stream))
    hang_up(server.url, stream.close)


def test_hanging_up_without_streaming_aborts_too(server: Server, model: str) -> None:
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)) as connection:
        body = json.dumps({"model": model, "ignore_eos": True, **LONG})
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: splitserve\r\nContent-Type: application/json"
        connection.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        hang_up(server.url, connection.close)
