"""A setting is declared once, and all that people and processes are told of it follows from that."""

from __future__ import annotations

import argparse
import inspect
from typing import Annotated

import pytest

from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.launcher.serve_settings import ServeSettings
from splitserve.engine_core.settings.arguments import add_flags, flag_words, given_values, make_settings
from splitserve.engine_core.settings.flag_values import parse_bytes
from splitserve.engine_core.settings.setting import Declared, Setting, Settings, Value, declared
from splitserve.frontend.config import FRONTEND_SETTINGS
from splitserve.frontend.offline.engine_keywords import engine_keywords, engine_words, shows_keywords


class Oven(EngineConfig, frozen=True, kw_only=True):
    """An engine with one setting more."""

    preheat_s: Annotated[
        float, Setting("seconds of 100 % heat before the first loaf", "oven", low=0, high=90, llm=True)
    ] = 1.5


class Kinds(Settings, frozen=True, kw_only=True):
    """A setting of each kind."""

    count: Annotated[int, Setting("h", "g", low=0, high=9999)] = 3
    size: Annotated[int, Setting("h", "g", low=0, high=2**40, parse=parse_bytes)] = 2**21
    names: Annotated[tuple[str, ...], Setting("h", "g", flag="--name", choices=("a", "b"))] = ()
    descriptor: Annotated[int | None, Setting("h", "g", low=0, high=9, default="none")] = None
    calm: Annotated[bool, Setting("h", "g", negatable=True)] = True
    plain: int = 7


def parser_of(config: type[Settings]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="oven")
    add_flags(parser, declared(config))
    return parser


def parse(config: type[Settings], *words: str) -> Settings:
    settings = declared(config)
    given = given_values(parser_of(config).parse_args(list(words)), settings)
    made = make_settings(config, given)
    again = parser_of(config).parse_args(flag_words(settings, given))
    assert make_settings(config, given_values(again, settings)) == made
    return made


def test_one_declaration_makes_the_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = parser_of(Oven).format_help()
    assert " ".join(text.split()).endswith(
        "oven: --preheat S seconds of 100 % heat before the first loaf (default: 1.5)"
    )


def test_one_declaration_makes_the_flag_and_its_range() -> None:
    config = parse(Oven, "--preheat", "9")
    assert isinstance(config, Oven)
    assert config.preheat_s == 9.0
    with pytest.raises(ConfigError, match="--preheat must be from 0 to 90, got 91"):
        parse(Oven, "--preheat=91")


def test_one_declaration_makes_the_keyword_of_llm() -> None:
    keywords = engine_keywords(Oven)

    @shows_keywords(keywords)
    def bake(model: str = "", **settings: Value) -> list[str]:
        """Bake."""
        return engine_words(keywords, settings)

    assert bake(preheat=2.5, scheduling_policy="fair", enforce_eager=False) == [
        "--no-enforce-eager",
        "--scheduling-policy=fair",
        "--preheat=2.5",
    ]
    assert inspect.signature(bake).parameters["preheat"].default == 1.5
    assert "preheat: seconds of 100 % heat before the first loaf" in (bake.__doc__ or "")
    assert "lease" not in keywords, "not every setting is for scripts"


def test_every_kind_of_value_is_read_and_written() -> None:
    words = ("--count", "2k", "--size", "1.5M", "--name", "b", "A", "--descriptor", "4", "--no-calm")
    made = Kinds(count=2000, size=3 * 2**19, names=("b", "a"), descriptor=4, calm=False)
    assert parse(Kinds, *words) == made
    assert parse(Kinds) == Kinds()
    assert [each.shown_default for each in declared(Kinds)] == ["3", "2M", "", "none", "on"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--count", "-1"], "--count must be from 0 to 9999, got -1"),
        (["--name", "a", "c"], "--name must be one of a, b, got 'c'"),
        (["--descriptor", "10"], "--descriptor must be from 0 to 9, got 10"),
    ],
)
def test_each_value_is_checked(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(Kinds, *words)


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="Expected `int`"):
        make_settings(Kinds, {"count": "3"})


ALL = (*declared(EngineConfig), *FRONTEND_SETTINGS, *declared(ServeSettings))


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.flag)
def test_every_number_has_a_range_that_holds_its_default(each: Declared) -> None:
    setting = each.setting
    if each.type in (int, float):
        assert setting.low is not None
        assert setting.high is not None
    each.check(each.default)
    assert setting.help
    assert setting.group
