"""The engine of an LLM ends with its owner, whatever happens to either."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest

from splitserve import LLM, SamplingParams
from splitserve.engine_core.errors import EngineUnavailableError
from splitserve.frontend.offline.outputs import collect_outputs

pytestmark = pytest.mark.system

DEADLINE_S = 60.0
LONG = SamplingParams(max_tokens=500, ignore_eos=True, seed=3)

SCRIPT = """
import sys
from splitserve import LLM, SamplingParams
llm = LLM({model!r}, executor="simulated", use_tqdm=False)
print(llm._model.runner.engine_pid, flush=True)
{then}
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition: Callable[[], bool]) -> None:
    """Poll; the deadline makes the test fail, not slow."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def socket_directory(llm: LLM) -> Path:
    assert llm._model.runner._engine is not None
    return Path(llm._model.runner._engine.address.removeprefix("ipc://")).parent


def start(model: Path, then: str) -> tuple[subprocess.Popen[str], int]:
    """Run a script that makes an LLM; return its process and the engine's pid."""
    script = SCRIPT.format(model=str(model), then=then)
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


@pytest.mark.parametrize("then", ["", "llm.close()", "del llm", "raise ValueError('mine')", "sys.exit(3)"])
def test_nothing_is_left_when_the_script_ends(model: Path, then: str) -> None:
    process, pid = start(model, then)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert not is_alive(pid)
    assert ("ValueError: mine" in errors) == ("mine" in then)
    assert "Traceback" not in errors or "mine" in then


def test_nothing_is_left_when_the_script_is_killed(model: Path) -> None:
    process, pid = start(model, "sys.stdin.read()")
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    until(lambda: not is_alive(pid))


def test_an_interrupt_while_generating_ends_the_call_and_the_engine(model: Path) -> None:
    then = "print('now', flush=True)\nllm.generate(['x'] * 10**6, use_tqdm=False)"
    process, pid = start(model, then)
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert "KeyboardInterrupt" in errors
    assert not is_alive(pid)


def test_a_forked_child_leaves_the_engine_alone(model: Path) -> None:
    then = (
        "import os\nif os.fork() == 0:\n    sys.exit(0)\nos.wait()\n"
        "print(len(llm.generate('x', use_tqdm=False)))"
    )
    process, _ = start(model, then)
    output, errors = process.communicate(timeout=DEADLINE_S)
    assert output.strip() == "1", errors


def disturb(monkeypatch: pytest.MonkeyPatch, llm: LLM, numbers: Iterator[signal.Signals]) -> None:
    """Send the engine a signal with each output that comes, as long as there are any."""

    def collect(*arguments: Any) -> None:
        for number in islice(numbers, 1):
            os.kill(llm._model.runner.engine_pid, number)
        collect_outputs(*arguments)

    monkeypatch.setattr("splitserve.frontend.offline.job_runner.collect_outputs", collect)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_an_engine_that_ends_or_hangs_while_generating_is_restarted_and_the_requests_go_on(
    model: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [[token] for token in range(5, 25)]
    with LLM(str(model), executor="simulated", use_tqdm=False) as llm:
        wanted = [output.outputs[0].token_ids for output in llm.generate(prompts, LONG, use_tqdm=False)]
        pid = llm._model.runner.engine_pid
        disturb(monkeypatch, llm, iter([number]))
        found = [output.outputs[0].token_ids for output in llm.generate(prompts, LONG, use_tqdm=False)]
        assert found == wanted
        until(lambda: llm._model.runner.engine_pid != pid)
        assert not is_alive(pid)
        last = llm._model.runner.engine_pid
    assert not is_alive(last)


def test_an_engine_that_keeps_ending_is_given_up_and_its_end_told(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitserve.engine_core.process.restart_intensity.MAX_RESTARTS", 1)
    with LLM(str(model), executor="simulated", use_tqdm=False) as llm:
        first = llm._model.runner.engine_pid
        os.kill(first, signal.SIGKILL)
        until(lambda: llm._model.runner.engine_pid != first)
        llm.generate([[5]], LONG, use_tqdm=False)
        last = llm._model.runner.engine_pid
        disturb(monkeypatch, llm, iter([signal.SIGKILL]))
        with pytest.raises(EngineUnavailableError, match="SIGKILL"):
            llm.generate([[5]] * 50, LONG, use_tqdm=False)
        with pytest.raises(EngineUnavailableError, match="SIGKILL"):
            llm.generate([[5]], LONG, use_tqdm=False)
        assert llm._model.runner.engine_pid == last
    assert not is_alive(last)


@pytest.mark.parametrize("kill", [False, True])
def test_the_socket_directory_is_private_and_removed(model: Path, kill: bool) -> None:
    with LLM(str(model), executor="simulated", use_tqdm=False) as llm:
        directory = socket_directory(llm)
        assert directory.stat().st_mode & 0o777 == 0o700
        if kill:
            os.kill(llm._model.runner.engine_pid, signal.SIGKILL)
    assert not directory.exists()


def test_the_engine_of_an_llm_is_set_for_throughput(llm: LLM) -> None:
    """With the defaults of a server long prompts would be cut, and many of them refused."""
    assert llm._model.runner.engine_pid is not None
    words = psutil.Process(llm._model.runner.engine_pid).cmdline()
    assert {"--target-itl-ms=0", f"--max-waiting-tokens={2**40}"} <= set(words)
