#!/usr/bin/env python3
"""Does the wheel of dist/ serve in a new environment, for one who has neither compiler nor home?

`splitserve serve` runs with a home directory that it cannot write, and nothing on PATH but the environment.
If this is root, it runs as nobody, and where namespaces can be had in a root of its own: Python, environment
and the libraries that they link with, and no other file. Exit code 0 if a chat is answered, and the server
ends when it is told to.
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

from empty_root import argv_in, can_make_root, make_root

DIST = Path(__file__).resolve().parents[2] / "dist"
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "nvcc", "cmake", "ninja")
QUESTION = {
    "model": "splitserve-demo",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
}


def main() -> int:
    """Install, serve, ask; return the exit code."""
    (wheel,) = DIST.glob(f"splitserve-*_{os.uname().machine}.whl")
    # Not below /root, where nobody may look.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        began = time.monotonic()
        # A checkout on PYTHONPATH would count as installed.
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        subprocess.run([python_for_others(folder), "-m", "venv", folder / "venv"], check=True, env=env)
        subprocess.run([folder / "venv/bin/pip", "install", "--quiet", wheel], check=True, env=env)
        print(f"{wheel.name} installed after {time.monotonic() - began:.0f} s")
        return serve_and_ask(folder)


def python_for_others(folder: Path) -> Path:
    """Return a Python that nobody may run: this one, or a copy if others may not enter its folder."""
    python = Path(sys.base_prefix)
    program = f"bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    if all(each.stat().st_mode & stat.S_IXOTH for each in (python, *python.parents)):
        return python / program
    left_out = shutil.ignore_patterns("__pycache__", "site-packages", "test")
    shutil.copytree(python, folder / "python", symlinks=True, ignore=left_out)
    return folder / "python" / program


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
    argv, user = [str(binaries / "splitserve"), "serve", "--port", "0"], None
    # A Python of the system's has its files all over the place.
    if (folder / "python").exists() and can_make_root():
        make_root(folder / "root", [folder / "python", folder / "venv", home, scratch])
        (folder / "root" / scratch.relative_to("/")).chmod(0o777)
        argv = argv_in(folder / "root", argv)
        num_files = sum(len(files) for _, _, files in os.walk(folder / "root"))
        print(f"in a root of its own, of {num_files} files")
    elif os.getuid() == 0:
        user = pwd.getpwnam("nobody").pw_uid
        print("as nobody, with the files of this machine")
    log = folder / "log"
    with log.open("wb") as stream:
        began = time.monotonic()
        server = subprocess.Popen(
            argv,
            env={"PATH": f"{binaries}:/usr/bin:/bin:/usr/sbin:/sbin" if user is None else str(binaries)}
            | {"HOME": str(home), "TMPDIR": str(scratch)},
            cwd="/",
            user=user,
            extra_groups=[] if user is not None else None,
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
