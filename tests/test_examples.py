"""What can be checked of the documentation's examples without a server: syntax, flags, names of files."""

from __future__ import annotations

import ast
import json
import re
import shlex
from importlib.util import find_spec
from itertools import groupby, takewhile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from splitserve.engine_core.launcher.cli import main
from tests.command_lines import PROGRAMS, check_command_line
from tests.examples import NOT_RUN, PAGES, ROOT, Block, blocks, reason_not_run

BLOCKS = [block for page in PAGES for block in blocks(page)]
# Programs of others: what they would do here is not ours to test.
FOREIGN = {"docker", "helm", "kubectl", "prometheus", "ray", "systemctl"}
FOREIGN |= {"echo", "git", "install", "pip", "source", "sudo"}
ASSIGNMENT = re.compile(r"[A-Z_]+=")


def of(*languages: str) -> list[object]:
    """The blocks in one of these languages, as cases that bear the place of the block."""
    return [
        pytest.param(block, id=f"{block.page}:{block.line}")
        for block in BLOCKS
        if block.language in languages
    ]


def command_lines(code: str) -> list[list[str]]:
    """The commands after a prompt; those of a pipeline one by one, without what they are redirected to."""
    found: list[list[str]] = []
    for line in re.findall(r"^\$ (.*)$", code.replace("\\\n", " "), flags=re.MULTILINE):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
        lexer.whitespace_split = True
        redirected = False
        for is_operator, words in groupby(lexer, lambda word: word in ("|", ">", "&&", "&", ";")):
            if is_operator:
                redirected = ">" in words
            elif not redirected:
                found.append(list(words))
    return found


def test_commands_are_found_in_pipelines_and_over_several_lines() -> None:
    code = "$ A=1 x 'a b' \\\n  -c   # says\noutput\n$ git diff | y > z\n"
    assert command_lines(code) == [["A=1", "x", "a b", "-c"], ["git", "diff"], ["y"]]


def test_every_block_says_what_it_is() -> None:
    assert {block.language for block in BLOCKS} <= {"", "python", "console", "yaml", "json"}
    drawings = {"docs/architecture.md"}
    starts = tuple(f"{program} " for program in ("$", *PROGRAMS))
    plain = [each for each in BLOCKS if not each.language and each.page not in drawings]
    unmarked = [
        f"{each.page}:{each.line}"
        for each in plain
        if any(line.startswith(starts) for line in each.code.splitlines())
    ]
    assert unmarked == [], "commands are in blocks of ```console, after a prompt"


def test_what_is_not_run_is_there() -> None:
    assert len({reason_not_run(block) for block in BLOCKS} - {""}) == len(NOT_RUN)


@pytest.mark.parametrize("block", of("python"))
def test_python_compiles(block: Block) -> None:
    assert ast.parse(block.code).body


@pytest.mark.parametrize("block", of("json"))
def test_json_parses(block: Block) -> None:
    assert json.loads(block.code)


@pytest.mark.parametrize("block", of("yaml"))
def test_yaml_parses_and_is_a_file_of_settings_where_those_are_explained(
    block: Block, tmp_path: Path
) -> None:
    assert all(yaml.safe_load_all(block.code))
    if block.page == "docs/cli.md":
        path = tmp_path / "serve.yaml"
        path.write_text(block.code)
        check_command_line(["splitserve", "serve", "--config", str(path)])


@pytest.mark.parametrize("block", of("console"))
def test_commands_are_taken(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["config"]) == 0
    (tmp_path / "serve.yaml").write_text(capsys.readouterr().out)
    commands = command_lines(block.code)
    assert commands
    for command in commands:
        variables = list(takewhile(ASSIGNMENT.match, command))
        check(command[len(variables) :], dict(word.split("=", 1) for word in variables))


def check(words: list[str], environ: dict[str, str]) -> None:
    """Fail if a command would not be taken."""
    program, *arguments = words
    if program in PROGRAMS:
        check_command_line(words, environ)
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        assert {word for word in arguments if "=" not in word} <= set(targets)
    elif program == "pytest":
        assert [word for word in arguments if word.startswith("tests/") and not (ROOT / word).exists()] == []
    elif program == "python":
        check_python(arguments)
    elif program == "curl":
        check_curl(arguments)
    else:
        assert program in FOREIGN, f"say in {Path(__file__).name} how {program!r} is checked"


def check_python(arguments: list[str]) -> None:
    """A module of ours must be there; our own program, behind pdb's -m, must take its flags."""
    if arguments[0] == "setup.py":
        return
    modules = [(after, at) for at, after in enumerate(arguments[1:], 1) if arguments[at - 1] == "-m"]
    name, at = modules[-1]
    if name.startswith("splitserve."):
        program = {"splitserve.frontend.cli": "api-frontend", "splitserve.engine_core.cli": "engine-core"}
        check_command_line([program[name], *arguments[at + 1 :]])
    elif name.startswith(("benchmarks.", "tests.", "training.")):
        assert find_spec(name), name


def check_curl(arguments: list[str]) -> None:
    """The path must be one that docs/api.md lists, and the body JSON."""
    path = urlsplit(arguments[0] if "://" in arguments[0] else f"http://{arguments[0]}").path
    assert path in (ROOT / "docs" / "api.md").read_text()
    if "-d" in arguments:
        assert json.loads(arguments[arguments.index("-d") + 1])
