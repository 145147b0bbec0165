"""The kernel benchmark compares like with like: each case gives what its torch side gives."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from benchmarks import gpu_engine, gpu_engine_bench, gpu_experts, gpu_kernels, gpu_speculation
from benchmarks.gpu_attention import Work, attention_cases, coded_cache_cases
from benchmarks.gpu_case import Case
from benchmarks.gpu_coded import FORMS, coded_cases
from benchmarks.gpu_engine_bench import Bench
from benchmarks.gpu_engine_shapes import SHAPES, write_config
from benchmarks.gpu_kernels import Result, Sizes, all_cases, median_us
from benchmarks.gpu_sampling import sampling_cases
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from splitserve.worker.batch.step_graphs import StepInFlight
from splitserve.worker.graphs import cuda_graphs
from splitserve.worker.ops.invariant import InvariantOps
from tests.gpu.conftest import Gpu
from tests.gpu.test_batch_invariance import invariant
from tests.gpu.whole_worker import device_of

__all__ = ["invariant"]

TINY = Sizes("tiny", 6, 64, 48, 4, 2, 16, 50, layers=2, moves=3)


def test_every_case_gives_what_torch_gives(gpu: Gpu, dtype: torch.dtype) -> None:
    names = set()
    for case in all_cases(gpu.ops, gpu.device, TINY, dtype):
        names.add(case.op)
        # Ours first: both may write to the same place.
        actual = case.ours()
        if not gpu.is_emulated:
            torch.cuda.synchronize()
        actual, expected = actual.clone(), case.torchs()
        tolerance = 0.05 if dtype == torch.bfloat16 else 0.01
        if not gpu.is_emulated:
            torch.cuda.synchronize()
        torch.testing.assert_close(actual.cpu(), expected.cpu(), atol=tolerance, rtol=tolerance)
    assert {"rms_norm", "silu_and_mul", "rotary_kv_write", "move_blocks out", "embedding"} <= names
    assert "sum_parts" in names


def test_products_with_codes_give_what_torch_gives(gpu: Gpu) -> None:
    forms = set()
    for case in coded_cases(gpu.ops, gpu.device, (1, 20), ((40, 96),), 20000):
        forms.add(case.op)
        # Copies of the weight take turns.
        for _ in range(2):
            torch.testing.assert_close(case.ours().cpu(), case.torchs().cpu(), atol=0.06, rtol=0.06)
    assert forms == set(FORMS)


def test_attention_and_logprobs_give_what_torch_gives(gpu: Gpu) -> None:
    attention = attention_cases(gpu.ops, gpu.device, [Work(2, 1, 40, 4, 2, 64), Work(1, 8, 20, 4, 2, 64)])
    logprobs = [c for c in sampling_cases(gpu.ops, gpu.device, [300], [2]) if c.op == "top_logprobs"]
    for case in [*attention, *logprobs]:
        actual, expected = case.ours().cpu(), case.torchs().cpu()
        torch.testing.assert_close(actual, expected, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("form", ["bf16", "mxfp4"])
def test_experts_give_what_torch_gives(
    gpu: Gpu, form: Literal["bf16", "mxfp4"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_experts, "CHOICES", 1)
    shape = gpu_experts.Shape("tiny", 64, 32, 5, 2, form)
    layer = gpu_experts.Layer(gpu.ops, gpu.device, shape)
    step = gpu_experts.Step(layer, 6)
    assert set(step.calls()) == set(step.floors())
    for ours, torchs in step.calls().values():
        actual, expected = ours().cpu(), torchs().cpu()
        torch.testing.assert_close(actual, expected, atol=0.03, rtol=0.03, check_dtype=False)
    assert step.num_read == len(step.choices[0].ids.unique())
    sizes = {"bf16": 2 * 64 * 32 * 2, "mxfp4": 2 * 64 * 32 * 17 // 32}
    assert layer.inner.expert_bytes == sizes[form]


def test_attention_over_codes_is_near_that_over_bfloat16(gpu: Gpu) -> None:
    for case in coded_cache_cases(gpu.ops, gpu.device, [Work(2, 1, 40, 4, 2, 64)]):
        # Both write to the same tensor.
        actual, expected = case.ours().cpu().clone(), case.torchs().cpu()
        torch.testing.assert_close(actual, expected, atol=0.1, rtol=0.1)
        assert not torch.equal(actual, expected)


def test_both_sides_of_the_sampling_cases_draw_tokens(gpu: Gpu) -> None:
    for case in sampling_cases(gpu.ops, gpu.device, [300], [2]):
        if case.op == "sample":
            for drawn in (case.ours().cpu(), case.torchs().cpu()):
                assert ((drawn >= 0) & (drawn < 300)).all()


def test_steps_are_timed_as_a_worker_runs_them_and_by_their_graphs_alone(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_engine_bench, "STEPS", 5)
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPH_ROWS", 2)
    args = gpu_engine.parse(["--context", "25", "--request-tokens", "8", "--requests", "2"])
    folder = write_config(SHAPES["tiny"], tmp_path, 33)
    bench = Bench(folder, device_of(gpu), 3, args)
    running: list[bool] = []
    begin = bench._worker.begin

    def watched(step: SchedulerOutput) -> object:
        started = begin(step)
        running.append(isinstance(started, StepInFlight))
        return started

    monkeypatch.setattr(bench._worker, "begin", watched)
    assert bench.decode(2, 25) > 0
    # Those after the first, whose graph is captured then, too.
    assert sum(running) >= 5 + gpu_engine_bench.WARM_STEPS - 1
    assert bench.replay(2, 25)
    assert bench.replay(3, 25) is None
    graphs = bench._worker.runner.graphs
    graphs._graphs.clear()
    graphs._has_room = False
    assert bench.replay(2, 25) is None


def test_steps_with_drafts_are_timed_beside_those_without(
    gpu: Gpu, invariant: InvariantOps, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_speculation, "STEPS", 2)
    monkeypatch.setattr(gpu_speculation, "ROUNDS", 1)
    words = "--shape tiny --rows 2 --drafts 3 --context 20 --dtype float32"
    args = gpu_speculation.parse(words.split())
    gpu_speculation.measure(args, device_of(replace(gpu, ops=invariant)))
    lines = [line.split()[3:-3] for line in capsys.readouterr().out.splitlines()]
    assert lines == [["in", "flight"], ["waited", "for"], ["3", "drafts"]]


def test_a_case_that_fails_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(case: Case, ceilings: dict[str, float]) -> Result:
        if case.op == "bad":
            raise RuntimeError("operation not permitted when stream is capturing")
        return Result(case.op, case.shape, 2.0, 3.0, 0.5, 0.0, 4.0, 0.5)

    streams: list[object] = []
    monkeypatch.setattr(gpu_kernels, "measure", measure)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda: "default")
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    cases = [Case(op, "any", torch.Tensor, torch.Tensor, 1) for op in ("good", "bad", "last")]
    results = [result and result.op for result in gpu_kernels.measured(cases, {"device": 1.0})]
    assert results == ["good", None, "last"]
    assert streams == ["default"]
    assert re.search(r"bad +any +failed: operation not permitted", capsys.readouterr().out)


@pytest.mark.gpu
def test_a_call_is_timed(real_gpu: Gpu) -> None:
    x, y = (torch.ones(1 << 24, device="cuda") for _ in range(2))
    small, large = median_us(lambda: y[:1024].copy_(x[:1024])), median_us(lambda: y.copy_(x))
    assert 0 < small < large
