"""Makes a release: python deploy/release/release.py 0.2.0, on a clean checkout of the main branch.

The version goes into pyproject.toml and the Helm chart, what stands under "Unreleased" in CHANGELOG.md
under its number and today's date, and all of it into one commit with the tag vVERSION. Nothing is pushed:
the output says what comes next.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHART = "deploy/helm/splitserve/Chart.yaml"
CHANGED = ("pyproject.toml", "CHANGELOG.md", CHART)
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
NEXT = """\
{version} is committed and tagged. To publish it:
  make wheel && python -m twine upload dist/*
  make docs-release VERSION={version}
  git push origin HEAD v{version} gh-pages"""


class ReleaseError(Exception):
    """Why there is no release."""


def main(argv: list[str]) -> int:
    """Change the files, commit and tag; return the exit code."""
    if len(argv) != 1:
        print("usage: release.py VERSION", file=sys.stderr)
        return 2
    version, today = argv[0], datetime.datetime.now(tz=datetime.UTC).date()
    try:
        if _git("status", "--porcelain"):
            raise ReleaseError("there are changes that are not committed")
        changed = release({name: (ROOT / name).read_text() for name in CHANGED}, version, today)
    except ReleaseError as error:
        print(f"release.py: {error}", file=sys.stderr)
        return 1
    for name, text in changed.items():
        (ROOT / name).write_text(text)
    _git("commit", "--quiet", "--all", "--message", f"Release {version}")
    _git("tag", "--annotate", f"v{version}", "--message", f"SplitServe {version}")
    print(NEXT.format(version=version))
    return 0


def release(files: dict[str, str], version: str, today: datetime.date) -> dict[str, str]:
    """Return the files of a release, by name.

    Args:
        files: pyproject.toml, CHANGELOG.md and the chart's Chart.yaml as they are.
        version: MAJOR.MINOR.PATCH, above all that CHANGELOG.md has, and not below the one in pyproject.toml.
        today: date of the release.

    Raises:
        ReleaseError: the version is none or too small, or there is nothing to release.
    """
    project, changelog = files["pyproject.toml"], files["CHANGELOG.md"]
    current = re.search(r'^version = "(.*)"$', project, flags=re.MULTILINE)
    assert current is not None
    if not VERSION.fullmatch(version):
        raise ReleaseError(f"{version} is not MAJOR.MINOR.PATCH")
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", changelog, flags=re.MULTILINE)
    for each in released:
        if numbers(version) <= numbers(each):
            raise ReleaseError(f"{version} is not above {each}, which has been released")
    if numbers(version) < numbers(current[1]):
        raise ReleaseError(f"{version} is below {current[1]}, the version in pyproject.toml")
    return {
        "pyproject.toml": project.replace(current[0], f'version = "{version}"', 1),
        "CHANGELOG.md": dated(changelog, version, today),
        CHART: re.sub(r"(?m)^(version|appVersion): .*$", rf"\1: {version}", files[CHART]),
    }


def dated(changelog: str, version: str, today: datetime.date) -> str:
    """The changelog with what is unreleased under its version.

    Raises:
        ReleaseError: there is nothing under "Unreleased".
    """
    before, mark, after = changelog.partition("## [Unreleased]\n")
    if not mark or not re.match(r"\s*### ", after):
        raise ReleaseError('nothing stands under "Unreleased" in CHANGELOG.md')
    return f"{before}{mark}\n## [{version}] - {today.isoformat()}\n{after}"


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, which compare as they should."""
    return tuple(int(part) for part in version.split("."))


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
