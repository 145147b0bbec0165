"""A batch file is checked whole before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitserve.client.batch.requests import BatchFile
from splitserve.engine_core.errors import ConfigError


def line(custom_id: str = "a", more: str = "", url: str = "/v1/chat/completions") -> str:
    return f'{{"custom_id": "{custom_id}", "method": "POST", "url": "{url}", "body": {{"x": 1{more}}}}}\n'


def test_requests_are_found_again_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_text(line("é") + "\n" + line("b") + line("c").rstrip("\n"))
    file = BatchFile(path)
    assert [place.custom_id for place in file.places] == ["é", "b", "c"]
    assert [file.read(place).custom_id for place in reversed(file.places)] == ["c", "b", "é"]
    assert bytes(file.read(file.places[0]).body["x"]) == b"1"
    file.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no requests"),
        (line() + "{", "line 2 of .*in: Input data was truncated"),
        (line() + line("b") + line(), "line 3 of .* has the custom_id of line 1: 'a'"),
        (line(""), "custom_id must have 1 to 512"),
        (line(url="http://h/v1/x"), "url must be a path"),
        (line(url="/v1/../x"), "url must be a path"),
        (line(more=', "stream": true'), "leave out body.stream"),
        (line().replace("POST", "GET"), r"Invalid enum value 'GET' - at `\$\.method`"),
        ('{"url": "/v1/x", "body": {}}', "custom_id"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "in").write_text(text)
    with pytest.raises(ConfigError, match=said):
        BatchFile(tmp_path / "in")
