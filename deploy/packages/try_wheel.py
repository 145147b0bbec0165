#!/usr/bin/env python3
"""Does the wheel of dist/ serve in a new environment, for one who has neither compiler nor home?

`splitserve serve` runs as nobody (if this is root), with a home directory that it cannot write, and nothing
on PATH but the environment. Exit code 0 if it answers, and ends when it is told to.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

DIST = Path(__file__).resolve().parents[2] / "dist"
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "nvcc", "cmake", "ninja")
QUESTION = {
    "model": "splitserve-demo",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
}


def main() -> int:
    """Install, serve, ask; return the exit code."""
    check_others_may_run(Path(sys.base_prefix))
    (wheel,) = DIST.glob(f"splitserve-*_{os.uname().machine}.whl")
    # Not below /root, where nobody may look.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        subprocess.run([folder / "venv/bin/pip", "install", "--quiet", wheel], check=True)
        print(f"{wheel.name} installed after {time.monotonic() - began:.0f} s")
        return serve_and_ask(folder)


def check_others_may_run(python: Path) -> None:
    """End if nobody may run this Python: the environment's is a link to it."""
    closed = [str(each) for each in (python, *python.parents) if not each.stat().st_mode & stat.S_IXOTH]
    if os.getuid() == 0 and closed:
        raise SystemExit(f"others may not enter {closed}: run this with a Python that they may run")


def serve_and_ask(folder: Path) -> int:
    """Start the server of folder/venv, ask it, end it."""
    home, scratch = folder / "home", folder / "tmp"
    home.mkdir(mode=0o555)
    scratch.mkdir(mode=0o777)
    scratch.chmod(0o777)
    binaries = folder / "venv/bin"
    found = [tool for tool in COMPILERS if shutil.which(tool, path=str(binaries))]
    if found:
        raise SystemExit(f"the environment brings build tools: {found}")
    nobody = pwd.getpwnam("nobody").pw_uid if os.getuid() == 0 else None
    log = folder / "log"
    with log.open("wb") as stream:
        began = time.monotonic()
        server = subprocess.Popen(
            [binaries / "splitserve", "serve", "--port", "0"],
            env={"PATH": str(binaries), "HOME": str(home), "TMPDIR": str(scratch)},
            cwd="/",
            user=nobody,
            extra_groups=[] if nobody is not None else None,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    try:
        answer = ask(server, log)
        print(f"answered {time.monotonic() - began:.0f} s after it was started: {answer}")
    finally:
        server.terminate()
        code = server.wait(60)
    print(f"ended with exit code {code}")
    return 0 if "Paris" in answer and code == 0 else 1


def ask(server: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the server is ready, within three minutes, and return what it says to QUESTION."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and server.poll() is None:
        listening = re.search(r" listening on (http://\S+)\n", log.read_text())
        if listening and is_ready(listening[1]):
            request = urllib.request.Request(
                f"{listening[1]}/v1/chat/completions",
                json.dumps(QUESTION).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                return str(json.load(response)["choices"][0]["message"]["content"])
        time.sleep(0.1)
    raise SystemExit(f"not ready:\n{log.read_text()}")


def is_ready(url: str) -> bool:
    """Whether GET /ready says so."""
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
