"""What a release changes, and whether CHANGELOG.md is as a release needs it."""

from __future__ import annotations

import datetime
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULE: dict[str, Any] = runpy.run_path(str(ROOT / "deploy" / "release" / "release.py"))
TODAY = datetime.date(2026, 1, 31)
FILES = {
    "pyproject.toml": '[project]\nname = "x"\nversion = "0.2.0"\n\n[tool.y]\nversion = "0.2.0"\n',
    "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A.\n\n## [0.2.0] - 2026-01-01\n",
    MODULE["CHART"]: 'apiVersion: v2\nversion: 0.2.0\nappVersion: 0.2.0\nkubeVersion: ">=1.27.0-0"\n',
}
# Of Keep a Changelog, in the order in which they stand.
HEADINGS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def test_a_release_changes_the_versions_and_dates_what_was_unreleased() -> None:
    changed = MODULE["release"](FILES, "0.3.0", TODAY)
    assert changed["pyproject.toml"] == FILES["pyproject.toml"].replace("0.2.0", "0.3.0", 1)
    assert changed["CHANGELOG.md"].startswith(
        "# Changelog\n\n## [Unreleased]\n\n## [0.3.0] - 2026-01-31\n\n### Added\n\n- A.\n\n## [0.2.0]"
    )
    assert changed[MODULE["CHART"]] == FILES[MODULE["CHART"]].replace("0.2.0", "0.3.0")


@pytest.mark.parametrize(
    ("version", "why"),
    [("0.2.0", "has been released"), ("0.1.9", "has been released"), ("0.3", "is not MAJOR.MINOR.PATCH")],
)
def test_a_version_that_cannot_be_is_refused(version: str, why: str) -> None:
    with pytest.raises(MODULE["ReleaseError"], match=why):
        MODULE["release"](FILES, version, TODAY)


def test_a_version_below_the_one_in_the_project_is_refused() -> None:
    files = FILES | {"pyproject.toml": FILES["pyproject.toml"].replace("0.2.0", "0.4.0", 1)}
    with pytest.raises(MODULE["ReleaseError"], match=r"0\.3\.0 is below 0\.4\.0"):
        MODULE["release"](files, "0.3.0", TODAY)


def test_nothing_is_no_release() -> None:
    changelog = FILES["CHANGELOG.md"].replace("### Added\n\n- A.\n\n", "")
    with pytest.raises(MODULE["ReleaseError"], match="Unreleased"):
        MODULE["release"](FILES | {"CHANGELOG.md": changelog}, "0.3.0", TODAY)


def test_the_changelog_has_known_headings_in_order_and_versions_from_the_newest() -> None:
    unreleased, *released = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1:]
    assert unreleased.startswith("[Unreleased]\n")
    versions = [re.match(r"\[(\d+\.\d+\.\d+)\] - \d{4}-\d{2}-\d{2}\n", part) for part in released]
    assert None not in versions
    order = [MODULE["numbers"](found[1]) for found in versions if found]
    assert order == sorted(order, reverse=True)
    for part in (unreleased, *released):
        headings = re.findall(r"^### (.*)$", part, flags=re.MULTILINE)
        assert headings == [each for each in HEADINGS if each in headings]
