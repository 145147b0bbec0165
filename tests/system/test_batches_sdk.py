"""A batch whose frontends are killed: another goes on, and every line has one answer."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from openai import OpenAI

from tests.system.processes import engine, frontend, wait_ready

pytestmark = [pytest.mark.system, pytest.mark.slow]

NUM_LINES = 120


def line(number: int) -> str:
    body = {"prompt": [1, 2, 3, number % 200 + 4], "max_tokens": 4, "ignore_eos": True, "seed": number}
    return json.dumps(
        {"custom_id": f"ask-{number}", "method": "POST", "url": "/v1/completions", "body": body}
    )


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.05)


def num_answered(client: OpenAI, batch_id: str) -> int:
    counts = client.batches.retrieve(batch_id).request_counts
    return counts.completed if counts is not None else 0


def test_a_batch_survives_its_frontend() -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sst-")))
        # Slow enough to be killed in the middle.
        simulated = ("--executor", "simulated", "--simulated-step-ms", "50", "--max-num-seqs", "16")
        address, _ = stack.enter_context(engine(folder, *simulated))
        flags = ("--file-store", str(folder / "files.db"))
        started = [stack.enter_context(frontend(folder, address, flags=flags)) for _ in range(2)]
        clients = []
        for url, process in started:
            wait_ready(url, process)
            clients.append(stack.enter_context(OpenAI(base_url=f"{url}/v1", api_key="x", timeout=60)))
        data = "\n".join(map(line, range(NUM_LINES))).encode()
        uploaded = clients[0].files.create(file=("in.jsonl", data), purpose="batch")
        made = clients[0].batches.create(
            input_file_id=uploaded.id, endpoint="/v1/completions", completion_window="24h"
        )
        wait_for(lambda: num_answered(clients[0], made.id) >= NUM_LINES // 4)
        # It works on the batch: the one that was asked looks at once, the other now and then.
        started[0][1].popen.kill()
        wait_for(lambda: clients[1].batches.retrieve(made.id).status == "completed")
        output = clients[1].batches.retrieve(made.id).output_file_id
        names = [json.loads(each)["custom_id"] for each in clients[1].files.content(str(output)).iter_lines()]
        assert names == [f"ask-{i}" for i in range(NUM_LINES)]
