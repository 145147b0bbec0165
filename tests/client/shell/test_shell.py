"""Files of settings name every command's flags."""

from __future__ import annotations

import pytest

from splitserve.engine_core.launcher.cli import main


@pytest.mark.parametrize(
    ("words", "line"),
    [([], "#port: 8000"), (["bench", "serve"], "#num_prompts: 1000")],
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
