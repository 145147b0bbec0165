"""Servers are named by URL, with or without /v1, or by socket."""

from __future__ import annotations

import pytest

from splitserve.client.target.settings import ConnectionSettings, split_url
from splitserve.engine_core.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://h:8000", ("http://h:8000", "/v1", "")),
        ("http://h:8000/", ("http://h:8000", "/v1", "")),
        ("https://h/v1/", ("https://h", "/v1", "")),
        ("https://h/some/v1", ("https://h/some", "/v1", "")),
        ("https://h/api/openai", ("https://h/api/openai", "", "")),
        ("unix:/run/x.sock", ("http://localhost", "/v1", "/run/x.sock")),
    ],
)
def test_a_server_is_named_in_many_ways(url: str, parts: tuple[str, str, str]) -> None:
    assert split_url(url) == parts


@pytest.mark.parametrize("url", ["", "h:8000", "ftp://h", "http://", "http://h?x=1", "unix:"])
def test_what_is_no_server_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="http://HOST:PORT"):
        split_url(url)


def test_the_key_is_sent_and_comes_from_the_environment_if_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-there")
    assert ConnectionSettings().address("http://h").headers == {"Authorization": "Bearer from-there"}
    given = ConnectionSettings(api_key="k", header=("X-A=b=c",)).address("http://h")
    assert given.headers == {"Authorization": "Bearer k", "X-A": "b=c"}


@pytest.mark.parametrize("header", ["X", "=v", "a b=c", "X=a\r\nY: b"])
def test_a_header_that_is_none_is_refused(header: str) -> None:
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        ConnectionSettings(header=(header,)).validate()
