"""Drafts that cost nothing: what they cost would be a matter of time."""

from __future__ import annotations

import pytest

from splitserve.worker.speculation.draft_prices import DraftPrices


def make_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody know what a step takes, and drafts have no price."""
    monkeypatch.setattr(DraftPrices, "took", lambda *_: None)
    monkeypatch.setattr(DraftPrices, "of_a_draft", lambda *_: 0.0)
