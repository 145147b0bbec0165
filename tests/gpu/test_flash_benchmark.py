"""The comparison with FlashAttention checks results first, and names what keeps an edition from it."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import gpu_flash
from benchmarks.gpu_attention import Step, Work
from benchmarks.gpu_flash import WORK, Compared, collect, compare, compare_edition, prefill_speed, row
from splitserve.worker.attention.flash_editions import EDITIONS
from tests.gpu.conftest import Gpu
from tests.worker.attention.flash_modules import Flash3

(FLASH_3,) = (edition for edition in EDITIONS if edition.name == "FlashAttention 3")
WORKS = [Work(2, 1, 32, 4, 2, 64), Work(1, 32, 32, 4, 2, 64), Work(2, 1, 32, 4, 2, 64, chunk=9)]


def run_for(theirs_us: float, ours_us: float) -> Callable[[Callable[[], Tensor]], float]:
    times = iter([ours_us, theirs_us])

    def time_us(call: Callable[[], Tensor]) -> float:
        call()
        return next(times)

    return time_us


def install(monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor]) -> None:
    module = ModuleType(FLASH_3.module)
    vars(module)["flash_attn_with_kvcache"] = lambda *args, **kwargs: change(
        Flash3.flash_attn_with_kvcache(*args, **kwargs)
    )
    monkeypatch.setitem(sys.modules, FLASH_3.module, module)


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
@pytest.mark.parametrize("page_size", [16, 32])
def test_an_edition_that_agrees_with_us_is_timed(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, work: Work, page_size: int
) -> None:
    install(monkeypatch, lambda out: out)
    step = Step(gpu.ops, gpu.device, work, torch.bfloat16)
    result = compare(step, FLASH_3, page_size, run_for(4.0, 5.0))
    assert result.reason == ""
    assert 0 <= result.error < 0.02
    assert (result.us, result.our_us, result.speed) == (4.0, 5.0, 0.8)
    assert result.tflop_per_s == pytest.approx(work.flops / 4e6)
    assert result.is_prefill == (work.new > 1)


def test_a_wrong_result_is_not_timed(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    # The trial call's results are all 1, and stay so.
    install(monkeypatch, lambda out: torch.where(out > 0, out, 0))
    step = Step(gpu.ops, gpu.device, WORKS[0], torch.bfloat16)
    result = compare(step, FLASH_3, 16, run_for(4.0, 5.0))
    assert result.reason.startswith("differs from ours by 0.")
    assert result.us == 0.0
    assert result.reason in row(result)


def test_what_an_edition_raises_is_named(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(gpu.ops, gpu.device, WORKS[0], torch.bfloat16)
    monkeypatch.setitem(sys.modules, FLASH_3.module, None)
    missing = compare(step, FLASH_3, 16, run_for(4.0, 5.0))
    assert missing.reason.startswith("FlashAttention 3: import of")
    assert missing.open_s == 0

    def adapt(module: object) -> Any:
        return lambda q, cache: torch.ones_like(q) if len(q) == 3 else 1 / 0

    broken = FLASH_3._replace(module="json", adapt=adapt)
    result = compare(step, broken, 16, run_for(4.0, 5.0))
    assert result.reason == "ZeroDivisionError: division by zero"
    assert result.open_s > 0


@pytest.mark.parametrize(("open_s", "num_tried"), [(0.0, 1), (0.5, 2 * len(WORK))])
def test_only_an_edition_that_cannot_be_opened_is_given_up(
    monkeypatch: pytest.MonkeyPatch, open_s: float, num_tried: int
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(gpu_flash, "cuda_ops", lambda: None)
    monkeypatch.setattr(gpu_flash, "Step", lambda *sizes: None)
    failed = Compared(FLASH_3.name, reason="it fails", open_s=open_s)
    monkeypatch.setattr(gpu_flash, "compare", lambda *step: failed)
    assert list(compare_edition(FLASH_3)) == [failed] * num_tried


LINE = json.dumps(asdict(Compared("FlashAttention 3", 16, "a shape")))


class Spoken(subprocess.Popen):
    """A process whose time begins when it has said something."""

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        assert self.stdout is not None
        select.select([self.stdout], [], [])
        return super().communicate(input, timeout)


@pytest.mark.parametrize(
    ("ending", "seconds", "reason"),
    [
        ("pass", 60, None),
        ("raise SystemExit('no driver')", 60, "ended with status 1: no driver"),
        ("os.abort()", 60, "ended with status -6: "),
        ("signal.pause()", 1, "took longer than 1 s"),
    ],
)
def test_how_the_process_of_an_edition_ends_is_told_and_loses_nothing(
    ending: str, seconds: float, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", Spoken)
    program = f"import os, signal; print({LINE!r}, flush=True); {ending}"
    results = collect("FlashAttention 3", [sys.executable, "-IS", "-c", program], seconds)
    assert results[0] == Compared("FlashAttention 3", 16, "a shape")
    assert [result.reason for result in results[1:]] == ([] if reason is None else [reason])


def test_our_prefill_is_held_against_the_fastest_where_it_is_worst() -> None:
    def result(shape: str, speed: float, **changes: object) -> Compared:
        compared = Compared("", shape=shape, speed=speed, is_prefill=True)
        for name, value in changes.items():
            setattr(compared, name, value)
        return compared

    assert prefill_speed([result("decode", 0.1, is_prefill=False), result("broken", 0.0, reason="x")]) is None
    assert prefill_speed([result("a", 1.2), result("a", 0.8), result("b", 0.9), result("b", 1.1)]) == 0.8
