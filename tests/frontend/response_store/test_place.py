"""What --response-store may be, what is said if it cannot be used, and what is shown of it."""

from __future__ import annotations

import builtins
import importlib
from pathlib import Path
from types import ModuleType

import pytest

from splitserve.engine_core.errors import ConfigError
from splitserve.frontend.cli import main
from splitserve.frontend.database.place import is_named, shown_place
from splitserve.frontend.response_store.place import check_place


@pytest.mark.parametrize("place", ["", "none", "NONE"])
def test_no_store_is_a_place_too(place: str) -> None:
    assert not is_named(place)
    check_place(place)


@pytest.mark.parametrize("place", ["{}/a.db", "sqlite:///{}/a.db", "postgresql://u:p@h/db", "redis://h:1/0"])
def test_a_place_need_not_be_reached_to_be_checked(tmp_path: Path, place: str) -> None:
    check_place(place.format(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("mysql://u:secret@h/db", "postgresql://"),
        ("sqlite+aiosqlite:///x", "SQLite file"),
        ("/none/such/a.db", "the directory /none/such does not exist"),
        ("{}", "is a directory"),
        ("{}/a.db?mode=ro", "question mark"),
        ("sqlite:///", "must name an SQLite file"),
        ("redis://h:port/0", "cannot be used"),
        ("postgresql://u:secret@h:port/db", "cannot be used"),
    ],
)
def test_a_wrong_place_is_refused_by_the_flag_s_name(
    tmp_path: Path, place: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check-config", f"--response-store={place.format(tmp_path)}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("api-frontend: error: --response-store ")
    assert words in said
    assert "secret" not in said


@pytest.mark.parametrize(("place", "module"), [("redis://h", "redis"), ("postgresql://h/d", "psycopg")])
def test_a_library_that_is_missing_is_named(place: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def import_module(name: str, package: str | None = None) -> ModuleType:
        if name.split(".")[0] == module:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(ConfigError, match=rf"--response-store.*{module}.*splitserve\[response-store\]"):
        check_place(place)


def test_a_file_that_is_not_writable_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="is not writable"):
        check_place(str(tmp_path / "a.db"))


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("postgresql://user:secret@host:5432/db", "postgresql://user:***@host:5432/db"),
        ("redis://:secret@host/0", "redis://:***@host/0"),
        ("redis://host/0", "redis://host/0"),
        ("/a/b.db", "/a/b.db"),
    ],
)
def test_a_password_is_not_shown(place: str, shown: str) -> None:
    assert shown_place(place) == shown


def test_without_a_store_no_library_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: object, **options: object) -> ModuleType:
        assert name.split(".")[0] not in ("sqlalchemy", "redis", "psycopg")
        return real(name, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert main(["--check-config"]) == 0
