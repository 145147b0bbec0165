"""Signals of a parent's death, which the kernel may repeat, beside the signals of an operator."""

from __future__ import annotations

import os

import pytest

from splitserve.engine_core.process.children import DEATH_SIGNALS_S, DeathSignals


def test_a_second_signal_counts_while_the_parent_lives() -> None:
    signals = DeathSignals()
    assert [signals.is_repetition(now_s) for now_s in (0.0, 0.01, 5.0)] == [False, False, False]


def test_a_death_signal_that_the_kernel_repeats_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    signals = DeathSignals()
    monkeypatch.setattr(os, "getppid", lambda: -1)
    late = 7.0 + DEATH_SIGNALS_S
    assert [signals.is_repetition(now_s) for now_s in (7.0, 7.01, 7.02, late)] == [False, True, True, False]
