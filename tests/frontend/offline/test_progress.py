"""How often the bars of the LLM class are drawn."""

from __future__ import annotations

import io
import sys

import pytest

from splitserve.frontend.offline.progress import (
    LOGGED_INTERVAL_S,
    SHOWN_INTERVAL_S,
    GenerationBar,
    refresh_interval_s,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_often_for_the_eye_and_seldom_into_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert refresh_interval_s() == SHOWN_INTERVAL_S
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert refresh_interval_s() == LOGGED_INTERVAL_S


def test_a_thousand_prompts_write_few_lines_into_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with GenerationBar(1000, enabled=True) as bar:
        for _ in range(1000):
            bar.count_done(3)
            bar.show()
    assert file.getvalue().count("\r") <= 5
    assert "1000/1000" in file.getvalue()
