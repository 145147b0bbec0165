"""`splitserve top` shows what a server's public endpoints tell."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from splitserve.client.top.metrics import rates, read_sample
from splitserve.client.top.view import OpenRequest, bar, view
from splitserve.engine_core.launcher.cli import main

TEXT = """\
# TYPE splitserve:engine_state gauge
splitserve:engine_state{{engine="e",state="ready"}} {ready}
splitserve:engine_state{{engine="e",state="asleep"}} {asleep}
# TYPE splitserve:num_requests_running gauge
splitserve:num_requests_running{{engine="e",model_name="m"}} 3.0
# TYPE splitserve:kv_cache_usage_perc gauge
splitserve:kv_cache_usage_perc{{engine="e",model_name="m"}} 0.5
# TYPE splitserve:generation_tokens counter
splitserve:generation_tokens_total{{engine="e",model_name="m"}} {tokens}
# TYPE splitserve:prefix_cache_queries counter
splitserve:prefix_cache_queries_total{{engine="e",model_name="m"}} {tokens}
# TYPE splitserve:prefix_cache_hits counter
splitserve:prefix_cache_hits_total{{engine="e",model_name="m"}} {hits}
# TYPE splitserve:frontend_open_requests gauge
splitserve:frontend_open_requests{{frontend="1"}} 7.0
"""


def sample(at_s: float, tokens: int, hits: int = 0, ready: int = 1) -> object:
    return read_sample(TEXT.format(tokens=tokens, hits=hits, ready=ready, asleep=1 - ready), at_s)


def test_rates_are_of_the_time_between_two_looks() -> None:
    found = rates(sample(1.0, 100, 10), sample(3.0, 300, 60), "e")  # type: ignore[arg-type]
    assert (found.output_tps, found.cached) == (100.0, 0.25)


def test_an_engine_that_was_restarted_counts_from_zero_and_a_new_one_has_no_rate_yet() -> None:
    assert rates(sample(1.0, 500), sample(2.0, 40), "e").output_tps == 40.0  # type: ignore[arg-type]
    empty = read_sample("", 1.0)
    assert rates(empty, sample(2.0, 40), "e").output_tps == 0.0  # type: ignore[arg-type]


def test_all_is_shown() -> None:
    asked = OpenRequest("e", "evil\x1b]0;", "waiting", "blocks", 5, 6, 1, 2.5)
    console = Console(width=200, record=True, file=StringIO())
    now = sample(2.0, 300, ready=0)
    console.print(view("http://h", sample(1.0, 100), now, [asked] * 3, 2))  # type: ignore[arg-type]
    text = console.export_text()
    assert "e       asleep" in " ".join(text.split("\n"))
    for shown in ("200", "50%", "(2 of 3)", "waiting (blocks)", "evil?]0;"):
        assert shown in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("used", "cached", "text"),
    [(0.5, 0.75, "█" * 10 + "▒" * 5 + "·" * 5), (1.0, 1.0, "█" * 20), (0.0, 0.0, "·" * 20)],
)
def test_the_bar_has_used_cached_and_free_blocks(used: float, cached: float, text: str) -> None:
    assert str(bar(used, cached)).startswith(text)


@pytest.mark.system
def test_a_running_server_is_shown_once(server_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", server_url, "--once", "--interval", "0.1"]) == 0
    out = capsys.readouterr().out
    assert "engine-0" in out
    assert "ready" in out
    assert "oldest requests (0 of 0)" in out


def test_nobody_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", "unix:/nowhere/x.sock"]) == 1
    assert "splitserve: error: " in capsys.readouterr().err
