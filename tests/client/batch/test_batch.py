"""`splitserve batch`, killed in the middle and started again, has every answer exactly once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from splitserve.client.batch.batch import batch
from splitserve.client.batch.settings import BatchSettings
from splitserve.engine_core.errors import ConfigError

pytestmark = pytest.mark.system

NUM_REQUESTS = 600
LIMIT_S = 60.0
COMMAND = [sys.executable, "-P", "-m", "splitserve.engine_core.launcher.cli", "batch"]
BODIES: list[tuple[str, dict[str, object]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
    ("/v1/completions", {"prompt": "hi", "max_tokens": 2}),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 16, "store": False}),
    ("/v1/completions", {"prompt": "hi", "max_tokens": -5}),
]


def write_requests(path: Path) -> None:
    with path.open("w") as file:
        for i in range(NUM_REQUESTS):
            url, body = BODIES[i % len(BODIES)]
            file.write(json.dumps({"custom_id": str(i), "method": "POST", "url": url, "body": body}) + "\n")


def test_the_file_of_requests_is_not_written(tmp_path: Path) -> None:
    source, link = tmp_path / "in", tmp_path / "link"
    write_requests(source)
    link.symlink_to(source)
    text = source.read_bytes()
    settings = BatchSettings(input_file=str(source), output_file=str(link), overwrite=True)
    with pytest.raises(ConfigError, match="is the file of the requests"):
        batch(settings, None)
    assert source.read_bytes() == text


@pytest.mark.parametrize("names", [("long", "out"), ("in", "long")])
def test_a_file_that_the_system_refuses_is_named(tmp_path: Path, names: tuple[str, str]) -> None:
    write_requests(tmp_path / "in")
    source, target = (str(tmp_path / ("x" * 300 if name == "long" else name)) for name in names)
    with pytest.raises(ConfigError, match="xxx: File name too long"):
        batch(BatchSettings(input_file=source, output_file=target), None)


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_batch_killed_twice_ends_with_every_answer_once(server_url: str, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    write_requests(source)
    command = [*COMMAND, "-i", str(source), "-o", str(target), "--url", server_url]
    # So slow that on a busy machine, too, they are killed long before they are done.
    slow = [*command, "--max-concurrency", "2"]
    for part in (NUM_REQUESTS // 4, NUM_REQUESTS // 2):
        run = subprocess.Popen(slow, stderr=subprocess.PIPE)
        end_s = time.monotonic() + LIMIT_S
        while num_lines(target) < part:
            assert run.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < end_s
            time.sleep(0.005)
        os.kill(run.pid, signal.SIGKILL)
        run.communicate(timeout=LIMIT_S)
        assert num_lines(target) < NUM_REQUESTS, "it was done before it was killed"
    # What a crash of the machine can do: a line cut off.
    with target.open("ab") as file:
        file.write(b'{"id":"batch_req_1","custom_id":"59')
    last = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert last.returncode == 0, last.stderr
    assert f"{NUM_REQUESTS} of {NUM_REQUESTS} requests" in last.stderr
    answers = [json.loads(line) for line in target.read_text().splitlines()]
    assert sorted(int(each["custom_id"]) for each in answers) == list(range(NUM_REQUESTS))
    for each in answers:
        is_wrong = int(each["custom_id"]) % len(BODIES) == 3
        assert each["response"]["status_code"] == (400 if is_wrong else 200)
        assert (each["error"] is None) == (not is_wrong)
        assert bool(each["response"]["body"].get("error")) == is_wrong
    again = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert again.returncode == 0
    assert num_lines(target) == NUM_REQUESTS
