"""Recorded steps of models with the library's layers: the bits of steps that are launched from Python."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
import torch

from splitserve.worker.generic.memory_plan import plan_memory
from splitserve.worker.generic.model import TransformersModel
from splitserve.worker.generic.tracing import Launch, Launcher, StepTrace, storage_of, tensors_in
from tests.worker.generic.library_models import write_checkpoint
from tests.worker.graphs.pairing import count_calls, decoding_jobs, pair_of
from tests.worker.models.driver import Driver
from tests.worker.runner.driver import Driver as JobDriver

NUM_BLOCKS, NUM_HOST_BLOCKS = 96, 40
# With norms over heads, learned positions, one branch beside the other, scaled embeddings, soft caps.
RECORDED = ["llama", "qwen3", "gemma2", "gpt_neox", "opt"]


@pytest.mark.parametrize(
    ("model_type", "dtype"), [*((name, "bfloat16") for name in RECORDED), ("opt", "float32")]
)
def test_recorded_steps_end_as_others_do(
    model_type: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_checkpoint(model_type, tmp_path / model_type)
    pair = pair_of(path, dtype=dtype, model_impl="transformers", max_model_len=120)
    calls, rng = count_calls(monkeypatch), random.Random(7)
    assert pair.workers[0].loaded is not None
    jobs = decoding_jobs(rng, pair.workers[0].loaded.config.vocab_size, featured=0)
    JobDriver(
        pair, pair.config, NUM_BLOCKS, rng, NUM_HOST_BLOCKS, num_window_groups=pair.num_window_groups
    ).run(jobs)
    assert calls.draw > 20


def test_a_model_that_looks_at_values_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_checkpoint("llama", tmp_path / "llama")
    compute = TransformersModel._compute

    def looks(model: TransformersModel, token_ids: torch.Tensor, *rest: object) -> torch.Tensor:
        hidden = compute(model, token_ids, *rest)  # type: ignore[arg-type]
        return hidden * 2 if bool((token_ids == 0).all()) else hidden

    monkeypatch.setattr(TransformersModel, "_compute", looks)
    caplog.set_level(logging.WARNING)
    driver = Driver(path, model_impl="transformers")
    assert not driver.model.is_recordable
    assert "steps_not_recorded" in caplog.text
    assert "it looks at values by" in caplog.text


def test_memory_is_shared_by_what_is_not_needed_at_the_same_time() -> None:
    launcher, weight = Launcher(), torch.ones(64)

    def double(out: torch.Tensor, x: torch.Tensor) -> None:
        out.copy_(x + x)

    x = torch.ones(64)
    with StepTrace(launcher) as trace:
        unused = x + 5
        for _ in range(6):
            out = torch.empty_like(x)
            launcher(double, out, x)
            x = out * weight
        view = x.view(8, 8)
    assert len(unused) == 64
    plan = plan_memory(trace.nodes, view)
    assert len(plan.nodes) == 12
    assert plan.num_bytes == 2 * 64 * 4
    assert storage_of(weight) not in plan.offsets
    assert storage_of(unused) not in plan.offsets
    written = [node.tensors[0] if isinstance(node, Launch) else node.made for node in plan.nodes]
    assert all(storage_of(tensor) in plan.offsets for tensor in tensors_in(written))
