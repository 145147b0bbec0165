"""A flag counts more than its environment variable, and that more than the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.launcher.serve_settings import ENGINE, FRONTEND, SERVE
from splitserve.engine_core.settings.arguments import given_values, make_settings
from splitserve.engine_core.settings.config_file import config_text
from splitserve.engine_core.settings.parser import CommandParser
from splitserve.engine_core.settings.setting import Declared, declared
from splitserve.engine_core.settings.sources import add_settings, environment_values, file_values, variable
from tests.engine_core.settings.values import other_value

SETTINGS = declared(EngineConfig)
ALL = {each.field: each for each in (*SETTINGS, *SERVE, *FRONTEND)}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ALL.values():
        monkeypatch.delenv(variable(each), raising=False)


def given(words: list[str]) -> dict[str, object]:
    parser = CommandParser(prog="engine-core")
    add_settings(parser, SETTINGS)
    return given_values(parser.parse_args(words), SETTINGS)


def test_the_flag_wins_then_the_variable_then_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("max-num-seqs: 1\nblock_size: 2\ndtype: BF16\n")
    monkeypatch.setenv("SPLITSERVE_MAX_NUM_SEQS", "3")
    monkeypatch.setenv("SPLITSERVE_BLOCK_SIZE", "4")
    monkeypatch.setenv("SPLITSERVE_LEASE", "")
    values = given(["--config", str(path), "--block-size", "6"])
    assert values == {"max_num_seqs": 3, "block_size": 6, "dtype": "bfloat16"}
    assert make_settings(EngineConfig, values).block_size == 6
    assert given([])["block_size"] == 4


@pytest.mark.parametrize("each", ALL.values(), ids=lambda each: each.flag)
def test_every_flag_can_be_set_by_variable_and_file(each: Declared, tmp_path: Path) -> None:
    value = other_value(each)
    items = value if isinstance(value, list | tuple) else [value]
    wanted = list(items) if each.many else value
    text = " ".join(str(item) for item in items)
    assert environment_values([each], {variable(each): text}) == {each.field: wanted}
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({each.keyword: wanted}))
    assert file_values([each], str(path)) == {each.field: wanted}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_num_seq: 4", "unknown key max_num_seq in .*, did you mean max_num_seqs?"),
        ("zzz: 4", "unknown key zzz in [^,]*$"),
        ("max-num-seqs: 4\nmax_num_seqs: 5", "has max_num_seqs twice"),
        ("max_num_seqs: many", "max_num_seqs in .*: expected a whole number"),
        ("max_num_seqs: [4]", "max_num_seqs in .* takes one value"),
        ("served_model_name: a", "served_model_name in .* takes a list"),
        ("max_num_seqs: true", "max_num_seqs in .* takes text or a number, not True"),
        ("max_num_seqs:", "max_num_seqs in .* takes text or a number, not None"),
        ("enforce_eager: maybe", "enforce_eager in .* takes true or false"),
        ("- a", "is no mapping of flags"),
        ("a: [", "--config .*: while parsing"),
        ("listen: !!python/object:os.x {}", "--config .*: could not determine a constructor"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        file_values(SETTINGS, str(path))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("SPLITSERVE_BLOCK_SIZE", "x", "SPLITSERVE_BLOCK_SIZE: expected a whole number"),
        ("SPLITSERVE_ENFORCE_EAGER", "2", "SPLITSERVE_ENFORCE_EAGER takes true or false, got '2'"),
        ("SPLITSERVE_LEASE", "long", "SPLITSERVE_LEASE: got 'long'"),
    ],
)
def test_a_wrong_variable_is_named_and_ends_the_command(
    name: str, text: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(SystemExit, match="2"):
        given([])
    assert said in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read --config .*none: No such file"):
        file_values(SETTINGS, str(tmp_path / "none"))


def test_the_written_file_sets_nothing_and_has_every_default_behind_a_mark(tmp_path: Path) -> None:
    text = config_text("splitserve serve", (*SERVE, *FRONTEND, *ENGINE))
    path = tmp_path / "c.yaml"
    path.write_text(text)
    assert file_values((*SERVE, *FRONTEND, *ENGINE), str(path)) == {}
    keys = [line[1:] for line in text.splitlines() if line.startswith("#") and not line.startswith("# ")]
    assert [key.partition(":")[0] for key in keys] == [each.keyword for each in (*SERVE, *FRONTEND, *ENGINE)]
    path.write_text("\n".join(key for key in keys if not key.endswith(":")))
    defaults = file_values((*SERVE, *FRONTEND, *ENGINE), str(path))
    assert len(defaults) > 50
    for field, value in defaults.items():
        default = ALL[field].default
        assert value == (list(default) if isinstance(default, tuple | list) else default), field
