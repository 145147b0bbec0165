"""Rows with adapters draft beside rows without: tokens, logprobs and ends are those of no speculation."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from llguidance import LLMatcher

from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.graphs.drafted_graphs import DraftedGraphs
from splitserve.worker.worker import Worker
from tests.worker.lora.adapters import ATTENTION, deltas_of, write_adapter
from tests.worker.runner.checkpoints import VOCAB, write_tiny_llama
from tests.worker.runner.test_engine_core import POISON, Loop, Served, random_requests
from tests.worker.runner.test_speculation import check_drafts, constrained
from tests.worker.speculation.draft_heads.head_checkpoint import write_head
from tests.worker.speculation.draft_model.test_draft_model import write_draft
from tests.worker.speculation.free_drafts import make_free

NAMES = ("sql", "law", "")


@pytest.fixture(autouse=True)
def _free_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a draft costs here would be a matter of time."""
    make_free(monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, one token of which is poisoned, two adapters, and what may draft for it."""
    folder = tmp_path_factory.mktemp("drafts")
    write_tiny_llama(folder / "model", poisoned_token=POISON)
    write_adapter(folder / "sql", deltas_of(1, 4), rank=4, alpha=8)
    write_adapter(folder / "law", deltas_of(2, 16, ATTENTION), rank=16, alpha=2, use_rslora=True)
    write_draft(folder / "draft", noise=0.03)
    write_head(folder / "head")
    return folder


def config_of(folder: Path, **changes: object) -> WorkerConfig:
    config = WorkerConfig(
        model=str(folder / "model"),
        num_threads=1,
        max_num_seqs=5,
        max_num_batched_tokens=32,
        block_size=4,
        lora=[f"{name}={folder / name}" for name in NAMES if name],
        max_loras=2,
    )
    return msgspec.structs.replace(config, **changes)


def adapted(requests: list[Served], rng: random.Random) -> list[Served]:
    """The same, each with an adapter or none."""
    return [replace(each, adapter=rng.choice(NAMES)) for each in requests]


@pytest.mark.parametrize(
    ("dtype", "max_loras"), [("float32", 2), ("bfloat16", 1)], ids=["two-at-once", "in-turns"]
)
def test_drafts_right_and_wrong_change_nothing(
    folder: Path, dtype: str, max_loras: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(folder, dtype=dtype, max_loras=max_loras)
    worker = Worker(config)
    loaded = worker, config, worker.load()
    seen: Counter[str] = Counter()
    forward = DraftedGraphs.forward

    def counted(graphs: DraftedGraphs, inputs: object) -> object:
        hidden = forward(graphs, inputs)  # type: ignore[arg-type]
        slots = inputs.meta.adapters  # type: ignore[attr-defined]
        if hidden is not None and slots is not None:
            seen["recorded"] += 1
            seen["mixed"] += len(set(slots.tolist())) > 1
        return hidden

    monkeypatch.setattr(DraftedGraphs, "forward", counted)
    for seed in range(3):
        rng = random.Random(seed)
        requests = adapted(constrained(random_requests(rng, 14), rng), rng)
        seen += check_drafts(loaded, requests, rng, depth=2, max_drafts=rng.choice([2, 4, 8]))
    wanted = ["right", "wrong", "preempted", "cached", "numerical_error", "LENGTH", "recorded", "mixed"]
    assert all(seen[name] > 0 for name in wanted), seen
    worker.close()


@pytest.mark.parametrize(
    ("methods", "model"),
    [(["grammar", "ngram", "draft_model"], "draft"), (["suffix"], ""), (["eagle3"], "head")],
    ids=["draft_model", "suffix", "eagle3"],
)
def test_every_drafter_drafts_for_rows_with_adapters(folder: Path, methods: list[str], model: str) -> None:
    rng = random.Random(3)
    prompt = [rng.randrange(8, VOCAB) for _ in range(6)] * 3
    grammar = LLMatcher.grammar_from_regex('("customer_number": [0-9]{2}; ){2}')
    samplings = [
        SequenceSampling(seed=1, max_tokens=30, temperature=0.0, ignore_eos=True, logprobs=2),
        SequenceSampling(seed=2, max_tokens=30, ignore_eos=True, presence_penalty=0.5, logprobs=0),
        SequenceSampling(seed=3, max_tokens=50, grammar=grammar, logprobs=1),
    ]
    requests = [Served(prompt, sampling, adapter=name) for sampling in samplings for name in NAMES]
    text = json.dumps({"method": methods, "num_speculative_tokens": 4})
    plain = config_of(folder)
    drafting = msgspec.structs.replace(
        plain, speculative_config=text, speculative_model=str(folder / model) if model else ""
    )
    outcomes, steps = [], []
    known: list[int] = []
    for config, max_drafts in ((plain, 0), (drafting, 4)):
        worker = Worker(config)
        loop = Loop(worker, config, worker.load(), max_drafts=max_drafts)
        served = [request.again() for request in requests]
        served[1].predicted = known
        loop.run(served)
        known = served[1].tokens[:20]
        outcomes.append([request.heard() for request in served])
        steps.append(loop.engine.stats())
        worker.close()
    assert outcomes[0] == outcomes[1]
    assert len({str(outcome[0]) for outcome in outcomes[0][:3]}) == 3
    assert {each.method for each in steps[1].drafts if sum(each.drafted)} >= {*methods, "prediction"}
    assert 0 < steps[1].accepted_draft_tokens < steps[1].draft_tokens
