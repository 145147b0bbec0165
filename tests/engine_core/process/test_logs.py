"""A record is a line of text or a JSON object, and no value can make it two."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable, Iterator

import pytest

from splitserve.engine_core.process.logs import (
    MAX_ITEMS,
    JsonFormatter,
    TextFormatter,
    configure_logging,
    log_event,
    log_level,
    set_log_level,
)

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (INFO|ERROR) worker\.loop (.*)", re.DOTALL)
Read = Callable[[], str]


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger whose records go nowhere else; named as a module of the package."""
    logger = logging.getLogger("splitserve.worker.loop")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger
    logger.propagate = True
    logger.setLevel(level)
    logger.handlers.clear()


@pytest.fixture(params=[TextFormatter, JsonFormatter])
def formatter(request: pytest.FixtureRequest) -> logging.Formatter:
    """Each of the two forms."""
    made: logging.Formatter = request.param()
    return made


def written(logger: logging.Logger, formatter: logging.Formatter) -> Read:
    """Send a logger's records through a formatter; returns what reads all that was written."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger.addHandler(handler)
    return stream.getvalue


def fail() -> None:
    raise ValueError("two\nlines\x1b[31m")


def log_failure(logger: logging.Logger) -> None:
    try:
        fail()
    except ValueError as error:
        log_event(logger, logging.ERROR, "failed", error, step=3)


def test_text_is_time_level_logger_event_and_fields(logger: logging.Logger) -> None:
    read = written(logger, TextFormatter())
    log_event(logger, logging.INFO, "listening", address="http://[::1]:80", pid=7, took_s=0.25, left=None)
    found = LINE.fullmatch(read().removesuffix("\n"))
    assert found is not None
    assert found.groups() == ("INFO", "listening address=http://[::1]:80 pid=7 took_s=0.250")


def test_json_has_the_same_with_types(logger: logging.Logger) -> None:
    read = written(logger, JsonFormatter())
    fields = {"address": "tcp://a b", "pid": 7, "took_s": 0.12345, "ok": True, "left": None, "rows": [1, 2]}
    log_event(logger, logging.INFO, "listening", **fields)
    record = json.loads(read())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", record.pop("time"))
    assert record == {
        "level": "info",
        "logger": "worker.loop",
        "event": "listening",
        "address": "tcp://a b",
        "pid": 7,
        "took_s": 0.123,
        "ok": True,
        "rows": [1, 2],
    }


def test_values_of_text_are_escaped_and_cut(logger: logging.Logger) -> None:
    read = written(logger, TextFormatter())
    log_event(
        logger,
        logging.INFO,
        "it happened",
        a=1,
        c="two words",
        d="x\ny\x1b[31m",
        e="z" * 9999,
        f="",
        g=("a", "b"),
    )
    assert ' it happened a=1 c="two words" d="x\\ny\\u001b[31m" e=zzz' in read()
    assert read().endswith(' f="" g=a,b\n')
    assert len(read()) < 1500


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 1e300, 10**30, "\ud800", "\u2028\x85"])
def test_any_value_is_one_line_of_valid_json(logger: logging.Logger, value: object) -> None:
    read = written(logger, JsonFormatter())
    log_event(logger, logging.INFO, "odd", value=value)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    assert len(read().splitlines()) == 1
    assert "value" in json.loads(read(), parse_constant=refuse)


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_long_lists_are_cut(logger: logging.Logger, formatter: logging.Formatter) -> None:
    read = written(logger, formatter)
    log_event(logger, logging.INFO, "many", values=[7] * 10**5)
    assert read().count("7") <= MAX_ITEMS + 20
    assert len(read()) < 1500


def test_no_field_replaces_what_every_record_has(logger: logging.Logger) -> None:
    read = written(logger, JsonFormatter())
    log_event(logger, logging.INFO, "real", level="fake", event="fake", logger="fake", time="fake")
    record = json.loads(read())
    assert (record["level"], record["event"], record["logger"]) == ("info", "real", "worker.loop")
    assert "fake" not in record.values()


def test_text_of_a_library_cannot_forge_a_record(
    logger: logging.Logger, formatter: logging.Formatter
) -> None:
    read = written(logger, formatter)
    logger.info("bad name %s", "x\n2026-01-01 00:00:00.000 INFO frontend request status=200\r\x1b[2J\x9b2J")
    assert sum(not line.startswith("    ") for line in read().splitlines()) == 1
    assert not set("\r\x1b\x9b") & set(read())


def test_a_traceback_belongs_to_its_record(logger: logging.Logger, formatter: logging.Formatter) -> None:
    read = written(logger, formatter)
    log_failure(logger)
    assert sum(not line.startswith("    ") for line in read().splitlines()) == 1
    assert "\x1b" not in read()
    for part in ("failed", "Traceback", "in fail", "ValueError: two"):
        assert part in read()
    if isinstance(formatter, JsonFormatter):
        record = json.loads(read())
        assert (record["event"], record["step"]) == ("failed", 3)
        assert record["traceback"].endswith("ValueError: two\nlines\x1b[31m")


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, as it was afterwards."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield root
    root.setLevel(level)
    root.handlers[:] = handlers


def test_a_process_may_say_again_how_it_logs(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("info")
    log_event(root, logging.INFO, "first")
    configure_logging("warning", "json")
    log_event(root, logging.INFO, "second")
    log_event(root, logging.WARNING, "third")
    first, third = capsys.readouterr().err.splitlines()
    assert first.endswith("INFO root first")
    assert json.loads(third)["event"] == "third"


def test_the_level_may_change_and_that_is_said_at_the_level_before(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("warning", "json")
    for level in ("error", "error", "debug"):
        set_log_level(level)
        assert log_level() == level
    log_event(root, logging.DEBUG, "seen")
    log_event(logging.getLogger("httpx"), logging.INFO, "still too much")
    records = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [record["event"] for record in records] == ["log level", "log level", "seen"]
    assert [record["level"] for record in records] == ["warning", "error", "debug"]
