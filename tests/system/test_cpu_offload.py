"""A prefix that the KV pool had to give up comes back from host memory, and no token or logprob is other."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.system.processes import Server, engine, serve
from tests.system.soak.watch import Figures

pytestmark = [pytest.mark.system, pytest.mark.slow]

BLOCK = 16
NUM_BLOCKS = 40
# Seven prompts of 18 full blocks: the pool holds two, the tier (0.01 GiB, 262 blocks) all.
NUM_PROMPTS = 7
PROMPT_TOKENS = 18 * BLOCK + 5


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    """A server with a pool for two of the prompts, and a CPU offload tier for all."""
    flags = ("--num-blocks", str(NUM_BLOCKS), "--kv-offload-gb", "0.01", "--max-num-seqs", "8")
    with tempfile.TemporaryDirectory(prefix="sst-") as path, serve(Path(path), flags) as running:
        yield running


def prompts(seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(8, 2048) for _ in range(PROMPT_TOKENS)] for _ in range(NUM_PROMPTS)]


def complete(server: Server, prompt: list[int], **fields: object) -> dict[str, Any]:
    body = {
        "prompt": prompt,
        "max_tokens": 20,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 3,
        "return_token_ids": True,
        **fields,
    }
    response = httpx.post(f"{server.base_url}/completions", json=body, timeout=60)
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    return answer


def num_cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def said(answer: dict[str, Any]) -> tuple[list[int], list[float]]:
    choice = answer["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


def test_prefixes_come_back_from_host_memory(server: Server, small: Server) -> None:
    asked = prompts(1)
    alone = [said(complete(server, prompt)) for prompt in asked]
    before = Figures(small.url)
    first = [complete(small, prompt) for prompt in asked]
    assert [said(answer) for answer in first] == alone
    assert [num_cached(answer) for answer in first] == [0] * NUM_PROMPTS
    again = [complete(small, prompt) for prompt in asked]
    assert [said(answer) for answer in again] == alone
    assert [num_cached(answer) for answer in again] == [18 * BLOCK] * NUM_PROMPTS
    after = Figures(small.url)
    # In the second round each prompt finds its blocks evicted by the others.
    assert after["kv_blocks_loaded_total"] - before["kv_blocks_loaded_total"] >= 5 * 18
    assert after["kv_blocks_saved_total"] - before["kv_blocks_saved_total"] >= 5 * 18
    assert after["num_used_host_kv_blocks"] <= after["num_host_kv_blocks"] == 262


def test_requests_side_by_side_get_the_same_from_a_pool_that_is_too_small(
    server: Server, small: Server
) -> None:
    options = {"temperature": 1.2, "seed": 5, "max_tokens": 60}
    asked = prompts(2) * 3
    alone = [said(complete(server, prompt, **options)) for prompt in asked[:NUM_PROMPTS]] * 3
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda prompt: complete(small, prompt, **options), asked))
    assert [said(answer) for answer in answers] == alone
    assert Figures(small.url).is_idle


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--kv-offload-gb", "1", "--no-enable-prefix-caching"), "--kv-offload-gb requires prefix"),
        (("--kv-offload-gb", "16000"), "--kv-offload-gb asks for 16000.00 GiB of memory"),
    ],
)
def test_a_tier_that_cannot_be_is_refused_in_one_line(
    folder: Path, words: tuple[str, ...], text: str
) -> None:
    with engine(folder, *words) as (_, process):
        assert process.popen.wait(30) == 2
    (line,) = [line for line in process.text().splitlines() if "error:" in line]
    assert line.startswith(f"engine-core: error: {text}")
