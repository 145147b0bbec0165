"""Heads on a GPU compute what they do on a CPU, draft from what the model computed, and change no token."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.config import WorkerConfig
from splitserve.worker.graphs.cuda_drafted_graphs import CudaDraftedGraphs
from splitserve.worker.graphs.cuda_graph import CudaGraph
from splitserve.worker.graphs.cuda_graphs import CudaGraphs
from splitserve.worker.kv_cache.layout import layer_caches
from splitserve.worker.models.asked_model import ask
from splitserve.worker.models.draft_heads.base import HeadModel
from splitserve.worker.ops.invariant import InvariantOps
from splitserve.worker.parallel.mesh import ALONE
from splitserve.worker.speculation.draft_heads.head_passes import HeadPasses
from splitserve.worker.speculation.speculator import Speculator
from splitserve.worker.worker import Worker
from tests.checkpoints import CheckpointCache
from tests.gpu.conftest import Gpu
from tests.gpu.test_batch_invariance import invariant
from tests.gpu.test_speculation import start
from tests.gpu.test_steps_ahead import loop_ahead, plain_requests
from tests.gpu.whole_worker import device_of
from tests.worker.runner.checkpoints import write_tiny_llama
from tests.worker.runner.test_engine_core import NUM_BLOCKS, POISON, Loop, Served, random_requests
from tests.worker.runner.test_speculation import constrained
from tests.worker.speculation.draft_heads.head_checkpoint import write_head
from tests.worker.speculation.draft_heads.test_eagle3_head import layout
from tests.worker.speculation.draft_heads.test_head_drafter import always_draft
from tests.worker.speculation.draft_heads.test_mtp import write_mtp
from tests.worker.speculation.free_drafts import make_free

pytestmark = pytest.mark.slow
__all__ = ["invariant"]


@pytest.fixture(autouse=True)
def _free_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a draft costs here would be a matter of time."""
    make_free(monkeypatch)


@pytest.fixture(scope="module", params=["eagle", "mtp"])
def drafting(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, checkpoints: CheckpointCache
) -> tuple[Path, dict[str, Any]]:
    """A model and settings with which it has a head: a Llama whose embedding has a NaN, or a DeepSeek."""
    folder = tmp_path_factory.mktemp("heads")
    if request.param == "mtp":
        return write_mtp(checkpoints, folder / "model"), {"speculate": "mtp"}
    model = write_tiny_llama(folder / "model", poisoned_token=POISON)
    return model, {"speculate": "eagle", "speculative_model": str(write_head(folder / "head"))}


@torch.inference_mode()
def head_logits(worker: Worker, text: torch.Tensor) -> torch.Tensor:
    """What a head says behind each token of a text but the first, and behind two more of its own states."""
    loaded = worker.loaded
    assert loaded is not None
    assert loaded.draft is not None
    head = cast("HeadModel", loaded.draft.model)
    head.serve(loaded.model)
    backends = loaded.placement.backend, loaded.draft.placement.backend
    caches = [
        layer_caches(backend.allocate(each.block_shape(4), num_blocks=6))
        for backend, each in zip(backends, (loaded, loaded.draft), strict=True)
    ]
    device = loaded.placement.device.torch_device
    text, count = text.to(device), len(text) - 3

    def placed(begin: int, end: int) -> AttentionMetadata:
        meta = layout(begin, end)
        for backend in backends:
            backend.begin_step(meta)
        return meta._replace(**{n: t.to(device) for n, t in meta._asdict().items() if t is not None})

    def said(hidden: torch.Tensor | None) -> torch.Tensor:
        assert hidden is not None
        logits = head.compute_logits(hidden)
        assert logits is not None
        return logits.cpu().clone()

    loaded.model.forward(text[:count], placed(0, count), caches[0])
    head.put(head.states(torch.arange(count, device=device)))
    hidden = head.forward(text[1 : count + 1], placed(0, count), caches[1])
    logits = [said(hidden)]
    for i in (count, count + 1):
        assert hidden is not None
        head.put(hidden[-1:].clone())
        hidden = head.forward(text[i + 1 : i + 2], placed(i, i + 1), caches[1])
        logits.append(said(hidden))
    return torch.cat(logits)


def test_a_head_computes_what_it_does_on_a_cpu(
    gpu: Gpu, invariant: InvariantOps, drafting: tuple[Path, dict[str, Any]]
) -> None:
    model, settings = drafting
    worker, config, _ = start(gpu, invariant, model, **settings)
    on_cpu = Worker(config)
    on_cpu.load()
    text = torch.randint(8, 250, (21,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    logits = head_logits(worker, text)
    assert logits.shape[0] == 20
    torch.testing.assert_close(logits, head_logits(on_cpu, text), atol=1e-4, rtol=1e-4)


def requests_of(rng: random.Random) -> list[Served]:
    """Any mix of all features, and rows so long that some are preempted."""
    stem = [rng.randrange(8, 250) for _ in range(20)]
    long = [
        Served(
            [*stem[: 8 * seed], *(rng.randrange(8, 250) for _ in range(9))],
            SequenceSampling(seed=seed, max_tokens=26, ignore_eos=True, temperature=seed / 3, logprobs=1),
        )
        for seed in range(4)
    ]
    return [*long, *constrained(random_requests(rng, 5), rng)]


@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
def test_drafts_change_nothing_and_are_those_of_the_whole_text(
    gpu: Gpu,
    invariant: InvariantOps,
    enforce_eager: bool,
    drafting: tuple[Path, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replayed: Counter[bool] = Counter()
    forward = CudaGraph.forward

    def counted(graph: CudaGraph, batch: Any, inputs: Any) -> None:
        replayed[graph._samples] += 1
        forward(graph, batch, inputs)

    monkeypatch.setattr(CudaGraph, "forward", counted)
    model, settings = drafting
    settings = {"max_num_seqs": 6, "enforce_eager": enforce_eager, **settings}
    loaded = start(gpu, invariant, model, **settings)
    other = start(gpu, invariant, model, **settings)[0]
    requests = requests_of(random.Random(3))
    Loop(*loaded).run(requests)
    drafted = [each.again() for each in requests]
    loop = Loop(*loaded, max_drafts=4)
    runner = loaded[0].runner
    assert runner is not None
    always = always_draft(loaded[0], other, records=not enforce_eager)
    # Of prompts in several chunks the first ones are lost, so that rows begin anew behind them.
    num_rows = len(runner.batch.num_tokens)
    monkeypatch.setattr(
        always, "pauses", lambda _: np.full(num_rows, 100 * (always.seen["steps"] % 24 < 12), np.int32)
    )
    if isinstance(runner.graphs, CudaGraphs):
        runner.drafting = always.drafting()._replace(graphs=CudaDraftedGraphs(runner.graphs))
    loop.run(drafted)
    assert [each.heard() for each in drafted] == [each.heard() for each in requests]
    stats = loop.engine.stats()
    assert stats.num_free_blocks == NUM_BLOCKS
    seen = always.seen + Counter(preempted=stats.num_preemptions, cached=stats.prefix_cache_hits)
    for name in ("drafted", "counted", "begun anew", "preempted", "cached"):
        assert seen[name] > 0, seen
    assert seen["counted"] < seen["drafted"]
    # Graphs of the head sample nothing; both have steps with several tokens of a row.
    assert all((replayed[samples] > 0) == (not enforce_eager) for samples in (True, False)), replayed


def test_steps_begin_ahead_but_where_a_head_reads_the_tokens_of_the_step_before(
    gpu: Gpu, invariant: InvariantOps, drafting: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_read = 0
    lay_out: Callable[..., Any] = HeadPasses._lay_out

    def known(*args: Any) -> Any:
        nonlocal num_read
        inputs = lay_out(*args)
        # None that the device alone knows.
        assert int(inputs.token_ids.min()) >= 0
        num_read += len(inputs.token_ids)
        return inputs

    can_follow, num_ahead = Worker.can_follow, 0

    def counted(worker: Worker, step: SchedulerOutput) -> bool:
        nonlocal num_ahead
        follows = can_follow(worker, step)
        num_ahead += follows
        return follows

    monkeypatch.setattr(HeadPasses, "_lay_out", known)
    monkeypatch.setattr(Worker, "can_follow", counted)
    model, settings = drafting
    with_head = start(gpu, invariant, model, **settings)
    draft = with_head[0].loaded.draft if with_head[0].loaded is not None else None
    assert draft is not None
    # The largest pass was run before memory was counted.
    workspace, generation = draft.model.workspace, draft.model.workspace.generation
    workspace.take("features", with_head[1].max_num_batched_tokens, draft.config.hidden_size)
    assert workspace.generation == generation
    requests = plain_requests(random.Random(5), 4)
    heard, seen = [], []
    # Without a head; with one that drafts, that reads, and that need not, as all rows pause for long.
    for loaded, max_drafts, rest in (
        (start(gpu, invariant, model), 0, 0),
        (with_head, 4, 0),
        (with_head, 0, 0),
        (with_head, 0, 100),
    ):
        monkeypatch.setattr(Speculator, "known_rest", rest)
        loop, _ = loop_ahead(loaded, max_drafts)
        served = [request.again() for request in requests]
        num_read = num_ahead = 0
        loop.run(served)
        heard.append([request.heard() for request in served])
        stats = loop.engine.stats()
        assert stats.num_free_blocks == NUM_BLOCKS
        seen.append((num_ahead > 0, num_read > 0, stats.draft_tokens > 0))
    assert heard == heard[:1] * 4
    assert seen == [(True, False, False), (False, True, True), (False, True, False), (True, False, False)]


def test_heads_of_several_gpus_are_refused_by_name(gpu: Gpu, drafting: tuple[Path, dict[str, Any]]) -> None:
    model, settings = drafting
    config = WorkerConfig(model=str(model), batch_invariant=True, tensor_parallel_size=2, **settings)
    with pytest.raises(ConfigError, match=r"the method (eagle3|mtp) works on one GPU, not with several"):
        ask(config, device_of(gpu), lambda: ALONE)
