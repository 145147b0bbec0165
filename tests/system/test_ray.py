"""Engines whose workers are actors on a real Ray cluster of two nodes, one rank on each."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from splitserve import LLM, SamplingParams
from tests.system.processes import ROOT, Process, engine, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.system,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="ray is not installed, or there is none for this Python",
    ),
]

DEADLINE_S = 60.0
FLAGS = ("--executor", "ray", "--dtype", "float32", "--num-blocks", "200", "--num-threads", "1")
NODE = r"127\.0\.0\.1 \([0-9a-f]{8}\)"


class Nodes:
    """The cluster, in a process of its own."""

    def __init__(self, folder: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tests.system.ray_nodes", folder],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address: str = self._answer()

    def ask(self, line: str) -> dict[str, int]:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{line}\n")
        self.popen.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self.popen.stdout is not None
        # Ray prints now and then, too.
        while line := self.popen.stdout.readline():
            if line[0] in '{"':
                return json.loads(line)
        raise AssertionError("the cluster ended")

    def is_empty(self) -> bool:
        return self.ask("state") == {"actors": 0, "groups": 0}

    def workers(self) -> list[psutil.Process]:
        return workers_of(self.popen.pid)

    def close(self) -> None:
        self.popen.communicate(timeout=DEADLINE_S)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        nodes = Nodes(folder)
        yield nodes
        nodes.close()


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray takes 127.0.0.1 for a machine's outer address without it."""
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


def wait_until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s, what()
        time.sleep(0.05)


def wait_ready(core: Process) -> None:
    wait_until(lambda: " ready address=" in core.text() or core.popen.poll() is not None, core.text)
    assert core.popen.poll() is None, core.text()


def workers_of(pid: int) -> list[psutil.Process]:
    """The actors of a cluster by the names Ray gives them; those of others are not ours to count or kill."""
    children = psutil.Process(pid).children(recursive=True)
    return [child for child in children if "ray::WorkerActor" in " ".join(cmdline(child))]


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_two_ranks_on_two_nodes_generate_what_one_process_does(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster is that of Ray's own environment variable."""
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    prompts = [f"The number {i} is" for i in range(6)]
    sampling = SamplingParams(max_tokens=16, temperature=0.8, seed=3, n=2)
    answers = []
    for executor, size in (("multiproc", 1), ("ray", 2)):
        with LLM(
            dtype="float32", num_blocks=200, num_threads=1, executor=executor, tensor_parallel_size=size
        ) as llm:
            assert len(nodes.workers()) == (size if executor == "ray" else 0)
            outputs = llm.generate(prompts, sampling, use_tqdm=False)
            answers.append([tuple(part.token_ids) for output in outputs for part in output.outputs])
    assert answers[0] == answers[1]
    assert len(answers[0]) == 12
    wait_until(nodes.is_empty, lambda: str(nodes.ask("state")))


def test_an_actor_that_is_killed_is_named_and_all_are_placed_again(folder: Path, nodes: Nodes) -> None:
    with engine(folder, *FLAGS, "-tp", "2", "--ray-address", nodes.address) as (_, core):
        wait_ready(core)
        lost = nodes.workers()
        lost[0].kill()
        wait_until(lambda: "workers are back" in core.text(), core.text)
        expected = rf"the worker of rank [01] on node {NODE} was lost: its process died"
        assert re.search(expected, core.text()), core.text()
        assert len(nodes.workers()) == 2
        assert not set(lost) & set(nodes.workers())
        core.stop(signal.SIGTERM)
        assert core.popen.wait(DEADLINE_S) == 0
    wait_until(nodes.is_empty, lambda: str(nodes.ask("state")))


def test_an_engine_that_is_killed_leaves_nothing_on_the_cluster(
    folder: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(folder))
    with engine(folder, *FLAGS, "--ray-address", nodes.address) as (_, core):
        wait_ready(core)
        assert nodes.ask("state") == {"actors": 1, "groups": 1}
        children = core.children()
        core.stop(signal.SIGKILL)
    wait_until(nodes.is_empty, lambda: str(nodes.ask("state")))
    assert psutil.wait_procs(children, DEADLINE_S)[1] == []
    assert [path.name for path in folder.iterdir() if path.name.startswith("splitserve-")] == []


def test_a_cluster_without_room_is_described_in_time(folder: Path, nodes: Nodes) -> None:
    flags = ("--ray-address", nodes.address, "-tp", "4", "--ray-timeout", "2")
    with engine(folder, *FLAGS, *flags) as (_, core):
        assert core.popen.wait(DEADLINE_S) == 4
        expected = (
            "no room within 2 s for 4 workers of CPU 1 each: "
            rf"the cluster has CPU 1 on {NODE}, 1 on {NODE}; 2 free in all"
        )
        assert re.search(expected, core.text()), core.text()
    wait_until(nodes.is_empty, lambda: str(nodes.ask("state")))


def test_a_node_that_is_lost_is_named_and_its_engine_goes_on(folder: Path, nodes: Nodes) -> None:
    with engine(folder, *FLAGS, "-tp", "2", "--ray-address", nodes.address) as (_, core):
        wait_ready(core)
        nodes.ask("lose")
        # How it is said to have ended depends on who notices first, Ray or the engine.
        expected = rf"workers lost error=\"the worker of rank 1 on node {NODE} was lost: "
        wait_until(lambda: re.search(expected, core.text()) is not None, core.text)
        # Whether there is room for all on the other node is Ray's to find out; the engine ends meanwhile.
        assert core.stop(signal.SIGTERM) == 0
    wait_until(nodes.is_empty, lambda: str(nodes.ask("state")))


def test_a_ray_of_its_own_ends_with_the_engine_that_is_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("TMPDIR", str(folder))
    with engine(folder, *FLAGS) as (_, core):
        wait_ready(core)
        children = core.children()
        assert len(children) > 3, "a launcher, Ray's own processes, and an actor"
        assert [worker.nice() for worker in workers_of(core.pid)] == [psutil.Process(core.pid).nice()]
        core.stop(signal.SIGKILL)
    assert psutil.wait_procs(children, DEADLINE_S)[1] == []


def test_a_ray_of_its_own_leaves_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(folder))
    with run(
        folder / "engine.log", "splitserve.engine_core.cli", *FLAGS, "--listen", f"ipc://{folder}/s/e.sock"
    ) as core:
        wait_ready(core)
        (directory,) = (path for path in folder.iterdir() if path.name.startswith("splitserve-ray-"))
        # Ray opens its own to everybody; this one is around it.
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert core.stop() == 0
    assert [path.name for path in folder.iterdir()] == ["engine.log"]
