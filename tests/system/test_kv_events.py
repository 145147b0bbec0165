"""KV events of the demo model as a router hears them, and the subscriber of docs/kv-events.md at work."""

from __future__ import annotations

import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import zmq

from tests.engine_core.kv_events.router import Router
from tests.system.processes import ROOT, Server, serve

pytestmark = [pytest.mark.system, pytest.mark.slow]

DEADLINE_S = 60.0
BLOCK_SIZE = 4
STORY = "Once upon a time there was a small engine that counted every block it kept. "


class Subscriber:
    """A SUB and a DEALER of one engine, and a router that hears every batch once and in order."""

    def __init__(self, context: zmq.Context, events: str, missed: str) -> None:
        self.router = Router()
        self._following = 0
        self._events = context.socket(zmq.SUB)
        self._events.connect(events)
        self._events.subscribe(b"kv")
        self._missed = context.socket(zmq.DEALER)
        self._missed.connect(missed)

    def catch_up(self) -> None:
        """Hear all that was published until now."""
        self._missed.send_multipart([b"", self._following.to_bytes(8, "big")])
        while True:
            assert self._missed.poll(DEADLINE_S * 1000)
            empty, number, payload = self._missed.recv_multipart()
            assert empty == b""
            if number == b"\xff" * 8:
                assert payload == b""
                return
            self._hear(number, payload)

    def hear_one(self) -> bool:
        """Take one batch as it is published, if one comes soon; those that came before it are asked for."""
        if not self._events.poll(50):
            return False
        topic, number, payload = self._events.recv_multipart()
        assert topic == b"kv-events"
        if int.from_bytes(number, "big") > self._following:
            self.catch_up()
        elif int.from_bytes(number, "big") == self._following:
            self._hear(number, payload)
        return True

    def close(self) -> None:
        self._events.close(linger=0)
        self._missed.close(linger=0)

    def _hear(self, number: bytes, payload: bytes) -> None:
        assert int.from_bytes(number, "big") == self._following, "a batch is missing"
        self._following += 1
        self.router.hear(payload)


@pytest.fixture
def addresses(folder: Path) -> tuple[str, str]:
    return f"ipc://{folder}/events.sock", f"ipc://{folder}/missed.sock"


@pytest.fixture
def flags(addresses: tuple[str, str]) -> tuple[str, ...]:
    events, missed = addresses
    return ("--kv-events-address", events, "--kv-events-replay-address", missed)


@pytest.fixture
def subscriber(addresses: tuple[str, str]) -> Iterator[Subscriber]:
    with zmq.Context() as context:
        subscriber = Subscriber(context, *addresses)
        yield subscriber
        subscriber.close()


def complete(server: Server, prompt: str, **fields: object) -> int:
    """Complete a prompt; return how many of its tokens were cached."""
    body = {"model": "splitserve-demo", "prompt": prompt, "max_tokens": 8, "ignore_eos": True, **fields}
    answer = httpx.post(f"{server.base_url}/completions", json=body, timeout=DEADLINE_S)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def tokens_of(server: Server, prompt: str) -> list[int]:
    body = {"model": "splitserve-demo", "prompt": prompt}
    answer = httpx.post(f"{server.url}/tokenize", json=body, timeout=DEADLINE_S)
    return list(answer.json()["tokens"])


def test_a_router_predicts_cached_tokens_of_real_requests(
    folder: Path, flags: tuple[str, ...], subscriber: Subscriber
) -> None:
    small = ("--kv-events-topic", "kv-events", "--block-size", str(BLOCK_SIZE), "--num-blocks", "26")
    prompts = [f"{n % 3}. {STORY}{'round and ' * (n % 5)}" for n in range(12)]
    predictions = []
    with serve(folder, (*flags, *small, "--max-model-len", "64")) as server:
        for n, prompt in enumerate(prompts):
            subscriber.catch_up()
            salt = {"cache_salt": "salty"} if n % 4 == 3 else {}
            # The last token is always computed.
            known = tokens_of(server, prompt)[:-1]
            predicted = subscriber.router.num_cached_blocks(known, BLOCK_SIZE, tuple(salt.values()))
            assert complete(server, prompt, **salt) == predicted * BLOCK_SIZE
            predictions.append(predicted)
        assert max(predictions) > 2
        assert subscriber.router.num_removed > 0, "the small pool never had to evict"
        for _ in range(int(DEADLINE_S)):
            complete(server, prompts[0])
            if subscriber.hear_one():
                break
        else:
            pytest.fail("nothing was heard as it was published")


def test_the_documented_subscriber_follows_an_engine_through_its_restart(
    folder: Path, addresses: tuple[str, str], flags: tuple[str, ...]
) -> None:
    script = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "kv-events.md").read_text(), re.DOTALL)[0]
    for documented, address in zip(("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558"), addresses, strict=True):
        assert script.count(documented) == 1
        script = script.replace(documented, address)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, bufsize=0)
    try:
        with serve(folder, flags) as server:
            before = follow(process, server, lambda line: line.num_cached > 20)
        with serve(folder, flags) as server:
            anew = follow(process, server, lambda line: line.number < before.number)
            assert anew.num_cached < before.num_cached, "what the first engine held was not forgotten"
            follow(process, server, lambda line: line.num_cached > 20)
    finally:
        process.kill()
        process.communicate()


class Line(NamedTuple):
    """What the subscriber prints after a batch."""

    number: int
    num_cached: int


def follow(process: subprocess.Popen[bytes], server: Server, is_wanted: Callable[[Line], bool]) -> Line:
    """Send new prompts and read what the subscriber prints until a line is as wanted.

    One that is not connected yet gets time: behind an engine begun anew it must hear a number below its own.
    """
    assert process.stdout is not None
    end_s, silence_s = time.monotonic() + DEADLINE_S, 2.0
    complete(server, f"{time.monotonic()} {STORY}")
    while time.monotonic() < end_s:
        if select.select([process.stdout], [], [], silence_s)[0]:
            match = re.fullmatch(rb"batch (\d+): (\d+) blocks are cached\n", process.stdout.readline())
            assert match is not None
            line, silence_s = Line(int(match[1]), int(match[2])), 0.05
            if is_wanted(line):
                return line
        else:
            complete(server, f"{time.monotonic()} {STORY}")
    raise AssertionError("it never heard what was wanted")
