"""Links between the pages of the documentation, and the paths of files that they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]

# A path of the repository begins with one of these.
TOPS = ("benchmarks", "client", "csrc", "docs", "engine_core", "frontend", "tests", "training", "worker")


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_page_and_a_heading_that_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_of_the_repository_leads_to_a_file_or_folder(page: Path) -> None:
    paths = re.findall(rf"`((?:{'|'.join(TOPS)})/[\w./-]*)(?::\d+)?`", page.read_text())
    assert [path for path in paths if not re.search("NAME|/_lib/", path) and not (ROOT / path).exists()] == []
