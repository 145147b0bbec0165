"""Whatever is drafted, right, wrong or not at all: tokens, logprobs and ends are those of no speculation."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from llguidance import LLMatcher

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.step_graphs import DraftedStepGraphs
from splitserve.worker.config import WorkerConfig
from splitserve.worker.graphs.cuda_drafted_graphs import CudaDraftedGraphs
from splitserve.worker.graphs.cuda_graphs import CudaGraphs
from splitserve.worker.graphs.drafted_graphs import DraftedGraphs
from splitserve.worker.kv_cache.arriving_caches import ArrivingCaches
from splitserve.worker.model_runner import ModelRunner
from splitserve.worker.models.base import Model
from splitserve.worker.ops.columns import Int32
from splitserve.worker.ops.cpu import ops
from splitserve.worker.sampling.step_result import RowEnds
from splitserve.worker.speculation.draft_sheet import EXCLUDED
from splitserve.worker.speculation.drafting import Drafting
from splitserve.worker.speculation.step_times import StepTimes
from splitserve.worker.worker import Worker
from tests.worker.ops.conftest import AVAILABLE
from tests.worker.runner.checkpoints import VOCAB, write_tiny_llama
from tests.worker.runner.test_batch_invariance import with_grammar
from tests.worker.runner.test_engine_core import (
    NUM_BLOCKS,
    Loaded,
    Loop,
    Served,
    bf16,
    fp32,
    random_requests,
    start_poisoned,
)
from tests.worker.speculation.free_drafts import make_free

__all__ = ["bf16", "fp32"]


@pytest.fixture(autouse=True)
def _free_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a draft costs here would be a matter of time."""
    make_free(monkeypatch)


class Prophet:
    """Drafts what requests are known to get, but for some drafts, which it makes up."""

    rest = 0
    drafts = True

    def __init__(self, batch: InputBatch, known: list[Served], rng: random.Random) -> None:
        self._batch = batch
        self._tokens = {(tuple(s.prompt), s.sampling.seed): s.tokens for s in known}
        self._rng = rng
        self._limits = np.zeros(len(batch.num_tokens), np.int32)
        self.seen: Counter[str] = Counter()

    def enter(self, step: SchedulerOutput) -> None:
        for new in step.new_rows:
            self._limits[new.row] = new.max_num_computed_tokens

    def draft(self, step: SchedulerOutput) -> Int32 | None:
        self.enter(step)
        counts = np.zeros(len(self._limits), np.int32)
        rows, num_new = unpack_int32(step.rows).tolist(), unpack_int32(step.num_tokens).tolist()
        left = self._batch.limits.max_num_batched_tokens - sum(num_new)
        for row, count in zip(rows, num_new, strict=True):
            counts[row] = self._draft_row(row, count, min(step.max_drafts, left))
            left -= max(0, int(counts[row]))
        self.seen["ended"] += int((counts < 0).sum())
        return counts

    def leave(self, step: SchedulerOutput) -> None:
        pass

    def passes(self, step: SchedulerOutput) -> bool:
        return False

    def learn(self, rows: Int32, num_drafts: Int32, num_counted: Int32) -> list[RowEnds]:
        self.seen["wrong"] += int((num_drafts - num_counted).sum())
        self.seen["right"] += int(num_counted.sum())
        return []

    def took(self, step: SchedulerOutput, times: StepTimes, *, is_at_speed: bool) -> None:
        self.seen["steps"] += 1

    def took_plainly(self, step: SchedulerOutput, seconds: float) -> None:
        self.seen["steps"] += 1

    def may_end(self, step: SchedulerOutput) -> bool:
        rows = unpack_int32(step.rows)
        return bool((self._batch.num_computed[rows] >= self._limits[rows]).any())

    def _draft_row(self, row: int, count: int, most: int) -> int:
        batch = self._batch
        length, computed = int(batch.num_tokens[row]), int(batch.num_computed[row])
        if computed >= self._limits[row]:
            return -1
        if computed + count != length or batch.sampling.features[row] & np.uint16(EXCLUDED):
            return 0
        most = min(most, int(self._limits[row]) - length, int(batch.blocks.room(np.array([row]))[0]) - length)
        prompt = tuple(batch.tokens[row, : batch.num_prompt_tokens[row]].tolist())
        known = self._tokens[prompt, int(batch.sampling.columns.seed[row].astype(np.uint64))]
        drafts = [
            token if self._rng.random() < 0.8 else self._rng.randrange(VOCAB)
            for token in known[length - len(prompt) :][: max(0, most)]
        ]
        batch.tokens[row, length : length + len(drafts)] = drafts
        return len(drafts)


def recorded_parts(runner: ModelRunner) -> tuple[Model, ArrivingCaches, InputBatch]:
    return runner._model, runner._kv_caches, runner.batch


def constrained(requests: list[Served], rng: random.Random) -> list[Served]:
    """The same, some with a grammar."""
    return [replace(each, sampling=with_grammar(each.sampling, rng)) for each in requests]


def check_drafts(
    loaded: Loaded, requests: list[Served], rng: random.Random, depth: int, max_drafts: int
) -> Counter[str]:
    """Run requests without drafts, and then with drafts that are often right; count what happened."""
    plain = Loop(*loaded, depth)
    plain.run(requests, rng)
    drafting = [each.again() for each in requests]
    loop = Loop(*loaded, depth, max_drafts)
    runner = loaded[0].runner
    assert runner is not None
    prophet = Prophet(runner.batch, requests, rng)
    graphs: DraftedStepGraphs | None = None
    if isinstance(runner.graphs, CudaGraphs):
        graphs = CudaDraftedGraphs(runner.graphs)
    elif runner.graphs is not None:
        graphs = DraftedGraphs(*recorded_parts(runner))
    runner.drafting = Drafting(prophet, runner._sampler.grammars, graphs)  # type: ignore[arg-type]
    loop.run(drafting, rng)
    for without, with_drafts in zip(requests, drafting, strict=True):
        assert with_drafts.heard() == without.heard()
        assert with_drafts.finished is not None
        prophet.seen[with_drafts.finished.error_code or with_drafts.finished.reason.name] += 1
    stats = loop.engine.stats()
    assert stats.num_free_blocks == NUM_BLOCKS
    assert stats.num_steps < plain.engine.stats().num_steps
    prophet.seen.update(preempted=stats.num_preemptions, cached=stats.prefix_cache_hits)
    return prophet.seen


@pytest.mark.parametrize("depth", [1, 2], ids=["one-step", "two-steps"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_drafts_change_neither_tokens_nor_logprobs_nor_ends(
    dtype: str, depth: int, request: pytest.FixtureRequest
) -> None:
    loaded: Loaded = request.getfixturevalue(dtype)
    seen: Counter[str] = Counter()
    for seed in range(6):
        rng = random.Random(seed)
        requests = constrained(random_requests(rng, 16), rng)
        seen += check_drafts(loaded, requests, rng, depth, rng.choice([1, 2, 4, 8]))
    wanted = ["right", "wrong", "preempted", "cached", "numerical_error", "STOP", "LENGTH", "REPETITION"]
    # A step ahead of its row's last token is what it takes to come too late.
    wanted += ["ended"] if depth == 2 else []
    assert all(seen[name] > 0 for name in wanted), seen


@pytest.mark.parametrize("isa", AVAILABLE)
def test_positions_side_by_side_have_the_bits_of_one_by_one_on_every_instruction_set(
    isa: str, tmp_path: Path
) -> None:
    ops.set_isa(isa)
    try:
        rng = random.Random(9)
        sampling = SequenceSampling(temperature=0.9, max_tokens=30, ignore_eos=True, logprobs=3)
        requests = [
            Served(
                [rng.randrange(8, VOCAB) for _ in range(rng.randint(1, 20))],
                msgspec.structs.replace(sampling, seed=seed),
            )
            for seed in range(3)
        ]
        check_drafts(start_poisoned(tmp_path, torch.bfloat16), requests, rng, depth=2, max_drafts=8)
    finally:
        ops.set_isa(ops.best_cpu_isa())


def test_prompt_lookup_saves_steps_where_text_repeats_itself(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    checkpoint = write_tiny_llama(tmp_path_factory.mktemp("lookup"))
    config = WorkerConfig(
        model=str(checkpoint), num_threads=1, max_num_seqs=5, max_num_batched_tokens=32, block_size=4
    )
    drafting = msgspec.structs.replace(config, speculate="ngram")
    rng = random.Random(5)
    prompt = [rng.randrange(8, VOCAB) for _ in range(6)] * 3
    few = tuple(rng.randrange(8, VOCAB) for _ in range(2))
    samplings = [
        SequenceSampling(seed=1, max_tokens=40, temperature=0.0, ignore_eos=True, logprobs=2),
        SequenceSampling(seed=2, max_tokens=40, ignore_eos=True, allowed_token_ids=few),
        SequenceSampling(seed=3, max_tokens=40, ignore_eos=True, presence_penalty=0.5, logprobs=0),
    ]
    outcomes, steps = [], []
    for each, max_drafts in ((config, 0), (drafting, 4)):
        worker = Worker(each)
        loop = Loop(worker, each, worker.load(), max_drafts=max_drafts)
        requests = [Served(prompt, sampling) for sampling in samplings]
        loop.run(requests)
        outcomes.append([request.heard() for request in requests])
        steps.append(loop.engine.stats())
    assert outcomes[0] == outcomes[1]
    assert steps[1].num_steps < steps[0].num_steps
    assert 0 < steps[1].accepted_draft_tokens <= steps[1].draft_tokens
    assert (steps[0].draft_tokens, steps[0].accepted_draft_tokens) == (0, 0)


def test_layers_that_are_not_its_own_are_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    checkpoint = write_tiny_llama(tmp_path_factory.mktemp("other"))
    worker = Worker(
        WorkerConfig(model=str(checkpoint), num_threads=1, model_impl="transformers", speculate="ngram")
    )
    with pytest.raises(ConfigError, match="--speculate works with the server's own kernels"):
        worker.load()


def test_a_grammar_drafts_what_it_forces(tmp_path_factory: pytest.TempPathFactory) -> None:
    checkpoint = write_tiny_llama(tmp_path_factory.mktemp("forced"))
    config = WorkerConfig(
        model=str(checkpoint), num_threads=1, max_num_seqs=5, max_num_batched_tokens=32, block_size=4
    )
    methods = '{"method": ["grammar", "ngram"], "num_speculative_tokens": 8}'
    drafting = msgspec.structs.replace(config, speculative_config=methods)
    grammar = LLMatcher.grammar_from_regex('("customer_number": [0-9]{2}, "delivery_address": [a-c]{2}; ){2}')
    samplings = [
        SequenceSampling(seed=seed, max_tokens=100, grammar=grammar, logprobs=1, min_tokens=5 * seed)
        for seed in range(3)
    ]
    outcomes, steps = [], []
    for each, max_drafts in ((config, 0), (drafting, 8)):
        worker = Worker(each)
        loop = Loop(worker, each, worker.load(), max_drafts=max_drafts)
        requests = [Served([9, 10, 11], sampling) for sampling in samplings]
        loop.run(requests)
        outcomes.append([request.heard() for request in requests])
        steps.append(loop.engine.stats())
    assert outcomes[0] == outcomes[1]
    assert steps[1].num_steps < steps[0].num_steps / 2.5
    by_method = {each.method: (sum(each.drafted), sum(each.counted)) for each in steps[1].drafts}
    drafted, counted = by_method["grammar"]
    assert 0 < 0.9 * drafted < counted
    assert sum(pair[1] for pair in by_method.values()) == steps[1].accepted_draft_tokens
    assert sum(pair[0] for pair in by_method.values()) == steps[1].draft_tokens


def test_a_prediction_is_drafted_as_far_as_it_is_right(tmp_path_factory: pytest.TempPathFactory) -> None:
    checkpoint = write_tiny_llama(tmp_path_factory.mktemp("predicted"))
    config = WorkerConfig(
        model=str(checkpoint), num_threads=1, max_num_seqs=5, max_num_batched_tokens=32, block_size=4
    )
    sampling = SequenceSampling(seed=3, max_tokens=40, ignore_eos=True, logprobs=1)
    prompt = [9, 10, 11]
    plain = Worker(config)
    alone = Served(prompt, sampling)
    Loop(plain, config, plain.load()).run([alone])
    # What else repeats is not looked up: no other drafter is named.
    each = msgspec.structs.replace(config, speculate="prediction")
    drafting = Worker(each)
    ready = drafting.load()
    num_steps = {}
    for name, predicted in (
        ("right", alone.tokens),
        ("edited", [*alone.tokens[:15], 7, *alone.tokens[15:25], *alone.tokens[28:]]),
        ("wrong", [5, 6, 7] * 9),
        ("none", []),
    ):
        loop = Loop(drafting, each, ready, max_drafts=4)
        served = Served(prompt, sampling, predicted=predicted)
        loop.run([served])
        assert served.heard() == alone.heard()
        stats = loop.engine.stats()
        num_steps[name] = stats.num_steps
        # One that is wrong from its first token on is never drafted.
        is_used = name in ("right", "edited")
        assert [each.method for each in stats.drafts] == (["prediction"] if is_used else [])
    assert num_steps["right"] < num_steps["edited"] < num_steps["none"] / 1.5
    assert num_steps["wrong"] <= num_steps["none"]
