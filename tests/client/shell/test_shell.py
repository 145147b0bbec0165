"""Files of settings and scripts of completion name every command's flags."""

from __future__ import annotations

import subprocess

import pytest

from splitserve.engine_core.launcher.cli import main


@pytest.mark.parametrize(
    ("words", "line"),
    [([], "#port: 8000"), (["chat"], "#history: true"), (["bench", "serve"], "#num_prompts: 1000")],
)
def test_the_settings_of_a_command_are_written(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"# Settings of `splitserve {' '.join(words) or 'serve'}`")
    assert line in lines


@pytest.mark.parametrize("words", [["nothing"], ["bench", "x"], ["env"], ["bench"]])
def test_a_command_without_settings_is_an_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", *words]) == 2
    assert "splitserve: error: splitserve" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_knows_the_flags_of_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for flag in ("max-num-seqs", "api-server-count", "system-prompt", "goodput", "num-iters-warmup"):
        assert flag in script
    if shell == "bash":
        checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")
