"""The file of answers is the record of what is done."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from splitserve.client.batch.answers import AnswerFile
from splitserve.engine_core.batch_lines.answer_line import AnswerLine, Response
from splitserve.engine_core.errors import ConfigError


def answer(name: str) -> AnswerLine:
    return AnswerLine("x", name, Response(200, "r", msgspec.Raw(b'{"a":1}')))


def test_what_is_appended_is_done_also_for_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "out"
    file = AnswerFile(path)
    file.append(answer("a"))
    assert path.read_bytes().endswith(b'"body":{"a":1}},"error":null}\n')
    file.close()
    file = AnswerFile(path)
    file.append(answer("b"))
    assert file.done == {"a", "b"}
    file.close()
    file = AnswerFile(path, overwrite=True)
    assert file.done == set()
    file.close()
    assert path.read_bytes() == b""


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_line_that_was_cut_off_is_removed_and_nothing_else(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "out"
    whole = msgspec.json.encode(answer("a")) + b"\n"
    path.write_bytes(whole * 1 + msgspec.json.encode(answer("b"))[:cut])
    file = AnswerFile(path)
    assert file.done == {"a"}
    assert path.read_bytes() == whole
    file.append(answer("b"))
    file.close()
    assert path.read_bytes().count(b"\n") == 2


def test_a_last_line_without_an_end_is_not_run_into(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b'{"custom_id": "a", "response": {}}')
    file = AnswerFile(path)
    assert file.done == {"a"}
    file.append(answer("b"))
    file.close()
    file = AnswerFile(path)
    assert file.done == {"a", "b"}
    file.close()


def test_two_processes_cannot_write_one_file(tmp_path: Path) -> None:
    first = AnswerFile(tmp_path / "out")
    with pytest.raises(ConfigError, match="written by another process"):
        AnswerFile(tmp_path / "out")
    first.close()
    AnswerFile(tmp_path / "out").close()


@pytest.mark.parametrize(
    "text",
    [
        "my notes\nof today",
        "my notes",
        '{"port": 8000}',
        '{"custom_id": "a", "url": "/v1/completions", "body": {}}\n',
    ],
    ids=["text", "a line without an end", "JSON", "requests"],
)
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"line 1 of .* is no answer of a batch"):
        AnswerFile(path)
    assert path.read_text() == text


def test_answers_to_other_requests_are_refused(tmp_path: Path) -> None:
    file = AnswerFile(tmp_path / "out")
    file.append(answer("a"))
    file.check_belongs_to({"a", "b"})
    with pytest.raises(ConfigError, match="an answer to 'a', which is not asked"):
        file.check_belongs_to({"b"})
    file.close()
