"""`splitserve chat` and `complete` against a running server, for a script and in a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

LIMIT_S = 60.0
# Pasting is turned on for each prompt, and then its mark is drawn.
PROMPT = r"\x1b\[\?2004h.*?>"
COMMAND = [sys.executable, "-P", "-m", "splitserve.engine_core.launcher.cli"]


def piped(text: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], input=text, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


@pytest.mark.parametrize("command", ["chat", "complete"])
def test_what_is_piped_in_is_answered_on_stdout(server_url: str, command: str) -> None:
    flags = ["--url", server_url, "--max-tokens", "8", "--ignore-eos"]
    once, again = (piped("hello\nthere", command, *flags, "--extra-body", '{"seed": 1}') for _ in "ab")
    assert (once.returncode, once.stderr) == (0, "")
    assert len(once.stdout.strip()) > 3
    assert once.stdout == again.stdout


@pytest.mark.parametrize(
    ("text", "words", "code", "said"),
    [
        ("", [], 2, "nothing to answer"),
        ("hi", ["--temperature", "-1"], 2, "--temperature must be from 0"),
        ("hi", ["--model", "other"], 1, "404: "),
        ("hi", ["MODEL"], 2, "either MODEL or --url"),
        ("", ["Once upon a time"], 2, "'Once upon a time' stands in the place of MODEL; .* --quick"),
    ],
)
def test_what_goes_wrong_is_one_line_on_stderr(
    server_url: str, text: str, words: list[str], code: int, said: str
) -> None:
    run = piped(text, "chat", "--url", server_url, *words)
    assert (run.returncode, run.stdout) == (code, "")
    assert re.fullmatch(rf"splitserve: error: .*{said}.*\n", run.stderr)


class Terminal:
    """The command in a terminal of its own."""

    def __init__(self, words: list[str], home: Path) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ |= {"TERM": "xterm", "XDG_STATE_HOME": str(home)}
            os.execv(COMMAND[0], [*COMMAND, *words])
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, pattern: str) -> str:
        """Read until the pattern is in what came since the last one was."""
        end_s = time.monotonic() + LIMIT_S
        while not (match := re.search(pattern, self.seen, re.DOTALL)):
            assert select.select([self._fd], [], [], max(0, end_s - time.monotonic()))[0], self.seen
            data = os.read(self._fd, 65536).decode(errors="replace")
            if "\x1b[6n" in data:
                # It asks where the cursor is.
                self.type("\x1b[1;1R")
            self.seen += data
        self.seen = self.seen[match.end() :]
        return match[0]

    def exit_code(self) -> int:
        """Read what is left; return the exit code."""
        while True:
            try:
                if not os.read(self._fd, 65536):
                    break
            except OSError:
                break
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_conversation_in_a_terminal(server_url: str, tmp_path: Path) -> None:
    words = [
        "chat",
        "--url",
        server_url,
        "--system-prompt",
        "be brief",
        "--max-tokens",
        "400",
        "--ignore-eos",
    ]
    terminal = Terminal(words, tmp_path)
    terminal.wait_for(PROMPT)
    terminal.type("first\x1b\rline\r")
    terminal.wait_for(PROMPT)
    saved, reset = tmp_path / "said.json", tmp_path / "reset.json"
    # What is typed before the prompt is there may be lost: the terminal is still in another mode then.
    for line, said in (
        (f"/save {saved}", "written to"),
        ("/nonsense", "there is no /nonsense"),
        ("/reset", "a new conversation"),
        (f"/save {reset}", "written to"),
    ):
        terminal.type(f"{line}\r")
        terminal.wait_for(said)
        terminal.wait_for(PROMPT)
    terminal.type("\x04")
    assert terminal.exit_code() == 0
    messages = json.loads(saved.read_text())
    assert [each["role"] for each in messages] == ["system", "user", "assistant"]
    assert messages[1]["content"] == "first\nline"
    assert len(messages[2]["content"]) > 100
    assert [each["role"] for each in json.loads(reset.read_text())] == ["system"]
    history = tmp_path / "splitserve" / "chat_history"
    assert "+first\n+line" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
