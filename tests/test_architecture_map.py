"""The map in docs/architecture.md names every folder with Python files, and its pictures what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Folders of the repository that hold Python files; hidden ones, links and build output are none of them.
TOPS = ("engine_core", "frontend", "worker", "client", "benchmarks", "training", "tests")
PACKAGES = ("engine_core", "frontend", "worker", "client", "training")


def listed_folders(page: str) -> set[str]:
    """Folders of the map: each line names one, two spaces further in than the folder it is in."""
    block = page.split("## The map", 1)[1].split("```")[1]
    parents: list[str] = []
    found = set()
    for line in block.strip().splitlines():
        match = re.match(r"((?:  )*)([\w/]+)/ +\S", line)
        assert match, f"no folder and what it is for: {line!r}"
        parents[len(match[1]) // 2 :] = [match[2]]
        found.add("/".join(parents))
    return found


def drawn_paths(page: str, title: str) -> set[str]:
    """Files and folders of a picture, which leaves out the package."""
    picture = page.split(f"## {title}\n", 1)[1].split("```")[1]
    return set(re.findall(r"(?<![\w/])(?:[a-z_]+/)*[a-z_]+(?:/(?= )|\.py)", picture))


def python_folders() -> set[str]:
    files = (path for top in TOPS for path in (ROOT / top).rglob("*.py"))
    return {str(path.parent.relative_to(ROOT)) for path in files}


def mirrors_a_room(folder: str) -> bool:
    top, _, room = folder.partition("/")
    return top == "tests" and room.split("/")[0] in PACKAGES and (ROOT / room).is_dir()


def test_every_folder_with_python_files_is_on_the_map_or_mirrors_one_that_is() -> None:
    listed = listed_folders((ROOT / "docs/architecture.md").read_text())
    missing = {folder for folder in python_folders() - listed if not mirrors_a_room(folder)}
    assert missing == set()


def test_every_folder_on_the_map_exists() -> None:
    listed = listed_folders((ROOT / "docs/architecture.md").read_text())
    assert {folder for folder in listed if not (ROOT / folder).is_dir()} == set()


def test_the_map_is_read_as_it_is_drawn() -> None:
    page = "## The map\n```\na/     first\n  b/c/ second\n    d/  third\n  e/   fourth\nf/  fifth\n```\n"
    assert listed_folders(page) == {"a", "a/b/c", "a/b/c/d", "a/e", "f"}


@pytest.mark.parametrize("title", ["The way of a request", "The way of a step"])
def test_the_pictures_name_files_and_folders_that_exist(title: str) -> None:
    paths = drawn_paths((ROOT / "docs/architecture.md").read_text(), title)
    assert len(paths) > 10
    assert {
        path for path in paths if not any((ROOT / package / path).exists() for package in PACKAGES)
    } == set()
