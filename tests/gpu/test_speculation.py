"""Drafts on a GPU change neither tokens nor logprobs nor ends, of rows with adapters and without."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from llguidance import LLMatcher

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.graphs.cuda_graph import CudaGraph
from splitserve.worker.ops.invariant import InvariantOps
from splitserve.worker.worker import Worker
from tests.gpu.conftest import Gpu
from tests.gpu.test_batch_invariance import invariant
from tests.gpu.test_steps_ahead import loop_ahead
from tests.gpu.whole_worker import device_of
from tests.worker.lora.adapters import deltas_of, write_adapter
from tests.worker.runner.checkpoints import VOCAB, write_tiny_llama
from tests.worker.runner.test_engine_core import NUM_BLOCKS, POISON, Loaded, Loop, Served, random_requests
from tests.worker.runner.test_speculation import check_drafts, constrained
from tests.worker.speculation.draft_model.test_draft_model import write_draft
from tests.worker.speculation.free_drafts import make_free

pytestmark = pytest.mark.slow
__all__ = ["invariant"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, one token of which is poisoned, and one that is much like it, to draft."""
    folder = tmp_path_factory.mktemp("speculation")
    model = write_tiny_llama(folder / "model", poisoned_token=POISON)
    return model, write_draft(folder / "draft", noise=0.03)


def start(gpu: Gpu, ops: InvariantOps, model: Path, **settings: object) -> Loaded:
    config = WorkerConfig(
        model=str(model),
        **{  # type: ignore[arg-type]
            "num_threads": 1,
            "max_num_seqs": 5,
            "max_num_batched_tokens": 32,
            "block_size": 4,
            "batch_invariant": True,
            **settings,
        },
    )
    worker = Worker(config, device_of(replace(gpu, ops=ops)))
    return worker, config, worker.load()


@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
def test_drafts_right_and_wrong_change_nothing(
    gpu: Gpu,
    invariant: InvariantOps,
    enforce_eager: bool,
    checkpoints: tuple[Path, Path],
    tmp_path: Path,
    graph_rows: list[list[int]],
) -> None:
    adapter = write_adapter(tmp_path, deltas_of(1, 4), rank=4, alpha=8)
    # Eager steps with adapters are those of a CPU.
    adapters = [] if enforce_eager else [f"sql={adapter}"]
    loaded = start(gpu, invariant, checkpoints[0], enforce_eager=enforce_eager, lora=adapters, max_loras=1)
    rng = random.Random(8)
    names = ["sql", ""] if adapters else [""]
    requests = [
        replace(each, adapter=rng.choice(names)) for each in constrained(random_requests(rng, 10), rng)
    ]
    seen = check_drafts(loaded, requests, rng, depth=2, max_drafts=4)
    wanted = ["right", "wrong", "cached", "numerical_error", "LENGTH"]
    assert all(seen[name] > 0 for name in wanted), seen
    # Tokens of one row run side by side in the graphs of decode steps.
    assert any(len(set(rows)) < len(rows) for rows in graph_rows) == (not enforce_eager)


def test_every_drafter_saves_steps_beside_steps_that_begin_ahead(
    gpu: Gpu,
    invariant: InvariantOps,
    checkpoints: tuple[Path, Path],
    graph_rows: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What a draft costs here would be a matter of time.
    make_free(monkeypatch)
    model, draft = checkpoints
    rng = random.Random(3)
    loop_text = [rng.randrange(8, VOCAB) for _ in range(6)] * 3
    few = tuple(rng.randrange(8, VOCAB) for _ in range(2))
    grammar = LLMatcher.grammar_from_regex('("customer_number": [0-9]{2}; ){2}')
    samplings = [
        SequenceSampling(seed=1, max_tokens=30, temperature=0.0, ignore_eos=True, logprobs=2),
        SequenceSampling(seed=2, max_tokens=30, ignore_eos=True, allowed_token_ids=few),
        SequenceSampling(seed=3, max_tokens=50, grammar=grammar, logprobs=1),
        SequenceSampling(seed=4, max_tokens=60, ignore_eos=True),
    ]
    requests = [Served(loop_text, sampling) for sampling in samplings]
    plain = start(gpu, invariant, model)
    loop, executor = loop_ahead(plain)
    loop.run(requests)
    assert executor.num_ahead > 5
    methods = '{"method": ["grammar", "ngram", "draft_model"], "num_speculative_tokens": 4}'
    drafting = start(gpu, invariant, model, speculative_config=methods, speculative_model=str(draft))
    assert max(map(len, graph_rows)) <= plain[1].max_num_seqs
    expected = [request.heard() for request in requests]
    for max_drafts, predicted in ((4, requests[3].tokens), (0, [])):
        served = [request.again() for request in requests]
        served[3].predicted = predicted
        drafted, executor = loop_ahead(drafting, max_drafts)
        drafted.run(served)
        assert [request.heard() for request in served] == expected
        stats = drafted.engine.stats()
        assert stats.num_free_blocks == NUM_BLOCKS
        if max_drafts:
            assert stats.num_steps < loop.engine.stats().num_steps
            # Those of few rows, too, have more tokens than the batch has rows.
            assert max(map(len, graph_rows)) > drafting[1].max_num_seqs
            methods_used = {each.method for each in stats.drafts if sum(each.counted)}
            assert {"prediction", "grammar", "ngram"} <= methods_used
        else:
            # Where the engine plans no drafts, as for many rows, a step need not wait for the last one.
            assert executor.num_ahead > 5
            assert stats.draft_tokens == 0


def test_graphs_of_a_draft_model_stay_where_more_rows_draft(
    gpu: Gpu, invariant: InvariantOps, checkpoints: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_free(monkeypatch)
    model, draft = checkpoints
    loaded = start(gpu, invariant, model, speculative_model=str(draft))
    captured: Counter[tuple[bool, int]] = Counter()
    capture = CudaGraph.capture

    def counted(graph: CudaGraph) -> CudaGraph:
        captured[graph._samples, len(graph._step.token_ids)] += 1
        return capture(graph)

    monkeypatch.setattr(CudaGraph, "capture", counted)
    loop = Loop(*loaded, max_drafts=4)
    sampling = SequenceSampling(seed=0, max_tokens=12, ignore_eos=True)
    for num_rows in range(1, 6):
        loop.run(
            [
                Served([9 + row, 10, 11], msgspec.structs.replace(sampling, seed=row))
                for row in range(num_rows)
            ]
        )
    assert loop.engine.stats().draft_tokens > 0
    assert {samples for samples, _ in captured} == {False, True}
    assert set(captured.values()) == {1}, captured


def test_without_the_same_bits_in_any_batch_drafts_are_refused(
    gpu: Gpu, checkpoints: tuple[Path, Path]
) -> None:
    config = msgspec.structs.replace(WorkerConfig(model=str(checkpoints[0])), speculate="ngram")
    with pytest.raises(ConfigError, match="--speculate on a GPU needs --batch-invariant"):
        Worker(config, device_of(gpu)).load()
