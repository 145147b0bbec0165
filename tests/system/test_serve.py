"""`splitserve serve`: one command up, answers, and leaves nothing behind when it ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
from openai import OpenAI

from tests.system.processes import ROOT, serve_command, wait_all_ready, wait_ready

pytestmark = pytest.mark.system


def command_of(child: psutil.Process) -> str:
    """The command line, or nothing for a child that has just ended."""
    try:
        return " ".join(child.cmdline())
    except psutil.Error:
        return ""


def shared_memory(processes: list[psutil.Process]) -> set[str]:
    """Paths that these processes have mapped; others on this machine make and remove theirs as they like."""
    maps = "".join(Path(f"/proc/{process.pid}/maps").read_text() for process in processes)
    return set(re.findall(r"/dev/shm/\S+", maps))


@pytest.mark.parametrize(
    "sig", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)], ids=["SIGTERM", "SIGINT"]
)
def test_serve_answers_and_leaves_nothing_behind(
    folder: Path, sig: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    with serve_command(folder / "serve.log") as (url, process):
        wait_ready(url, process)
        sdk = OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        answer = sdk.chat.completions.create(
            model=sdk.models.list().data[0].id,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
        )
        assert "Paris" in answer.choices[0].message.content
        children = process.children()
        assert len(children) >= 3, "an engine-core, its worker and an api-frontend"
        shared = shared_memory(children)
        assert process.stop(sig) == 0
        psutil.wait_procs(children, timeout=30)
        assert [command_of(child) for child in children if child.is_running()] == []
    leftovers = [path for path in folder.rglob("*") if path.name != "serve.log" and not path.is_dir()]
    assert leftovers == []
    assert [path for path in shared if Path(path).exists()] == []


@pytest.mark.slow
def test_a_killed_frontend_is_replaced_and_the_engine_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    with serve_command(folder / "serve.log", "--api-server-count", "2") as (url, process):
        wait_all_ready(url, 2, process)
        by_name = {
            name: [c for c in process.children() if name in command_of(c)]
            for name in ("splitserve.frontend.cli", "splitserve.engine_core.cli", "splitserve.worker.cli")
        }
        assert len(by_name["splitserve.frontend.cli"]) == 2
        by_name["splitserve.frontend.cli"][0].kill()

        def replaced() -> bool:
            pids = {c.pid for c in process.children() if "splitserve.frontend.cli" in command_of(c)}
            return len(pids) == 2 and by_name["splitserve.frontend.cli"][0].pid not in pids

        deadline = time.monotonic() + 60
        while not replaced():
            assert time.monotonic() < deadline, process.text()
            time.sleep(0.05)
        wait_all_ready(url, 2, process)
        assert by_name["splitserve.engine_core.cli"][0].is_running()
        assert by_name["splitserve.worker.cli"][0].is_running()
        assert httpx.get(f"{url}/health").status_code == 200


def test_a_port_in_use_is_said_before_anything_starts(folder: Path) -> None:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "splitserve.engine_core.launcher.cli", "serve", "--port", str(port)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode != 0
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_that_cannot_be_served_is_said_once_and_ends_the_command(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"architectures": ["NoSuchModel"]}')
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "splitserve.engine_core.launcher.cli",
            "serve",
            str(folder / "model"),
            "--port",
            "0",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "NoSuchModel" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "module", ["splitserve.engine_core.launcher.cli", "splitserve.engine_core.cli", "splitserve.frontend.cli"]
)
def test_version_and_help_load_nothing_heavy(module: str) -> None:
    for flag in ("--version", "--help"):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", module, flag],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0
        assert done.stdout.strip()
        loaded = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if "|" in line}
        assert not loaded & {"torch", "transformers", "numpy", "fastapi", "zmq", "huggingface_hub"}
