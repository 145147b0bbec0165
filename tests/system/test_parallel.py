"""Engines with several ranks, and several engines behind one frontend, as a client sees them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from splitserve.engine_core.checkpoint.source import DEMO_MODEL
from tests.system.processes import Process, engine, frontend, wait_ready

pytestmark = [pytest.mark.system, pytest.mark.slow]

PROMPTS = [f"The number {i} is" for i in range(8)]
FLAGS = ("--dtype", "float32", "--num-blocks", "400")


def complete(url: str, prompt: str) -> str:
    body = {
        "model": "splitserve-demo",
        "prompt": prompt,
        "max_tokens": 12,
        "temperature": 0.8,
        "seed": 3,
        "n": 2,
    }
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return "|".join(choice["text"] for choice in answer.json()["choices"])


def tokens_of(url: str, engine_id: str, name: str = "generation_tokens") -> float:
    """Tokens one engine has generated, or what another counter says of them."""
    text = httpx.get(f"{url}/metrics", timeout=10).text
    line = rf'^splitserve:{name}_total\{{[^}}]*engine="{engine_id}"[^}}]*\}} (\S+)$'
    found = re.search(line, text, flags=re.MULTILINE)
    return float(found[1]) if found else 0.0


@contextlib.contextmanager
def engines(folder: Path, *flags_of_each: tuple[str, ...]) -> Iterator[list[tuple[str, Process]]]:
    """An engine-core for each set of flags."""
    with contextlib.ExitStack() as stack:
        started = []
        for i, own_flags in enumerate(flags_of_each):
            own = folder / f"e{i}"
            own.mkdir(mode=0o700)
            flags = (*FLAGS, "--engine-id", f"e{i}", *own_flags)
            started.append(stack.enter_context(engine(own, *flags)))
        yield started


def test_two_engines_behind_one_frontend_share_the_work_and_agree(folder: Path) -> None:
    """One has two stages, the other two ranks; whichever serves a request, its tokens are the same."""
    parallel = ("--pipeline-parallel-size", "2"), ("--tensor-parallel-size", "2")
    with engines(folder, *parallel) as ((first, core_1), (second, core_2)):
        with frontend(folder, first) as (url, process):
            wait_ready(url, core_1, core_2, process)
            expected = [complete(url, prompt) for prompt in PROMPTS]
        with frontend(folder, first, second) as (url, process), ThreadPoolExecutor(8) as pool:
            wait_ready(url, core_1, core_2, process)
            before = tokens_of(url, "e0")
            assert list(pool.map(lambda prompt: complete(url, prompt), PROMPTS)) == expected
            assert tokens_of(url, "e0") > before
            assert tokens_of(url, "e1") > 0


def test_a_draft_model_on_the_last_stage_changes_no_answer(folder: Path) -> None:
    drafting = ("--pipeline-parallel-size", "2", "--speculative-model", str(DEMO_MODEL))
    with engines(folder, (), drafting) as started:
        answers = []
        for address, core in started:
            with frontend(folder, address) as (url, process):
                wait_ready(url, core, process)
                answers.append([complete(url, prompt) for prompt in PROMPTS])
                accepted = tokens_of(url, "e1", "spec_decode_num_accepted_tokens")
        assert answers[0] == answers[1]
        assert accepted > 0


def test_a_size_that_the_model_cannot_be_parted_into_is_refused_with_its_numbers(folder: Path) -> None:
    with engine(folder, *FLAGS, "-tp", "7") as (_, core):
        assert core.popen.wait(60) == 2
        assert "--tensor-parallel-size 7 does not divide the" in core.text()
