"""A draft model drafts what it says of the row's text, wherever its cache is from, and changes no token."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.speculation.draft_model.making import make_draft_model
from splitserve.worker.speculation.draft_model.plain_steps import PlainSteps
from splitserve.worker.worker import Worker
from tests.worker.runner.checkpoints import (
    HEAD_DIM,
    MAX_LEN,
    NUM_KV_HEADS,
    NUM_LAYERS,
    VOCAB,
    write_tiny_llama,
)
from tests.worker.runner.test_engine_core import NUM_BLOCKS, POISON, Loop, Served, random_requests
from tests.worker.runner.test_speculation import constrained
from tests.worker.speculation.draft_model.always import Always
from tests.worker.speculation.free_drafts import make_free


@pytest.fixture(autouse=True)
def _free_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    make_free(monkeypatch)


def write_draft(folder: Path, noise: float, max_len: int = MAX_LEN) -> Path:
    """A model whose logits resemble those of the tiny Llama."""
    write_tiny_llama(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": max_len}))
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    for weight in weights.values():
        weight += noise * weight.std() * torch.randn(weight.shape, generator=generator)
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Worker, WorkerConfig]:
    """A worker whose model is much like its draft model; one token of the model's is poisoned."""
    folder = tmp_path_factory.mktemp("draft_model")
    model = write_tiny_llama(folder / "model", poisoned_token=POISON)
    config = WorkerConfig(
        model=str(model),
        num_threads=1,
        max_num_seqs=5,
        max_num_batched_tokens=32,
        block_size=4,
        speculative_model=str(write_draft(folder / "draft", noise=0.03)),
    )
    worker = Worker(config)
    worker.load()
    return worker, config


def always_draft(worker: Worker, num_host_blocks: int = 0) -> Always:
    runner, loaded = worker.runner, worker.loaded
    assert runner is not None
    assert loaded is not None
    assert loaded.draft is not None
    drafters = [
        make_draft_model(loaded.draft, runner._sampler, count, records=count == num_host_blocks)
        for count in (num_host_blocks, 0)
    ]
    always = Always(*drafters)
    runner.drafting = always.drafting()
    return always


@pytest.mark.parametrize("depth", [1, 2], ids=["one-step", "two-steps"])
def test_drafts_change_nothing_and_are_those_of_the_whole_text(
    loaded: tuple[Worker, WorkerConfig], depth: int
) -> None:
    worker, config = loaded
    ready = worker.load()
    seen: Counter[str] = Counter()
    for seed in range(4):
        rng = random.Random(seed)
        requests = constrained(random_requests(rng, 16), rng)
        plain = Loop(worker, config, ready, depth)
        plain.run(requests, rng)
        drafting = [each.again() for each in requests]
        loop = Loop(worker, config, ready, depth, rng.choice([1, 2, 4, 8]))
        always = always_draft(worker)
        loop.run(drafting, rng)
        assert [each.heard() for each in drafting] == [each.heard() for each in requests]
        stats = loop.engine.stats()
        assert stats.num_free_blocks == NUM_BLOCKS
        seen += always.seen
        seen.update(saved=plain.engine.stats().num_steps - stats.num_steps)
        seen.update(preempted=stats.num_preemptions, cached=stats.prefix_cache_hits)
    assert all(seen[name] > 0 for name in ("saved", "preempted", "cached")), seen
    # What the draft model takes is no part of a step's time.
    assert seen["timed"] > 0
    # Independent draws from such logits agree in one of five places.
    assert 0.5 * seen["drafted"] < seen["counted"] < seen["drafted"], seen


def test_two_drafters_save_steps_and_are_counted_each_for_itself(loaded: tuple[Worker, WorkerConfig]) -> None:
    _, config = loaded
    methods = '{"method": ["ngram", "draft_model"], "num_speculative_tokens": 4}'
    rng = random.Random(6)
    requests = [
        Served(
            [rng.randrange(8, VOCAB) for _ in range(6)] * 3,
            SequenceSampling(seed=seed, max_tokens=40, ignore_eos=True, presence_penalty=0.5, logprobs=0),
        )
        for seed in range(3)
    ]
    steps = []
    heard = []
    for text, max_drafts in (("", 0), (methods, 4)):
        worker = Worker(msgspec.structs.replace(config, speculative_config=text))
        loop = Loop(worker, config, worker.load(), max_drafts=max_drafts)
        served = [each.again() for each in requests]
        loop.run(served)
        heard.append([each.heard() for each in served])
        steps.append(loop.engine.stats())
    assert heard[0] == heard[1]
    assert steps[1].num_steps < 0.8 * steps[0].num_steps
    drafted = {each.method: sum(each.drafted) for each in steps[1].drafts}
    assert drafted["ngram"] > 0
    assert drafted["draft_model"] > 0
    assert sum(drafted.values()) == steps[1].draft_tokens


def test_a_row_longer_than_the_draft_model_reads_goes_on_without_drafts(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model")
    config = WorkerConfig(
        model=str(model),
        num_threads=1,
        max_num_seqs=2,
        max_num_batched_tokens=32,
        block_size=4,
        speculative_model=str(write_draft(tmp_path / "draft", noise=0.0, max_len=24)),
    )
    worker = Worker(config)
    loop = Loop(worker, config, worker.load(), max_drafts=4)
    always = always_draft(worker)
    sampling = SequenceSampling(seed=1, max_tokens=40, ignore_eos=True)
    loop.run([Served([8, 9, 10], sampling)])
    # The draft behind token 24 is its last one; each step samples a token beside its drafts.
    assert always.seen["counted"] == always.seen["drafted"] == 17
    assert loop.engine.stats().num_steps > 40 - 24


def test_some_steps_go_without_drafts_so_that_their_time_is_known() -> None:
    plain_steps = PlainSteps(2)
    assert [plain_steps.is_one(1) for _ in range(66)] == [*[True] * 4, *[False] * 60, True, False]
    assert plain_steps.is_one(2)


def test_the_memory_of_both_is_foretold(loaded: tuple[Worker, WorkerConfig]) -> None:
    _, config = loaded
    both = Worker(config).memory_need()
    alone = Worker(msgspec.structs.replace(config, speculative_model="")).memory_need()
    assert both.weights_bytes == 2 * alone.weights_bytes
    assert both.block_bytes == 2 * alone.block_bytes


def test_its_weights_may_be_quantized_while_those_of_the_model_are_not(tmp_path: Path) -> None:
    model, draft = write_tiny_llama(tmp_path / "model"), write_draft(tmp_path / "draft", noise=0.03)
    plain = WorkerConfig(
        model=str(model),
        dtype="bfloat16",
        num_threads=1,
        max_num_seqs=3,
        max_num_batched_tokens=32,
        block_size=4,
        speculative_model=str(draft),
    )
    coded = msgspec.structs.replace(
        plain, speculative_config='{"method": "draft_model", "quantization": "int8"}'
    )
    assert Worker(coded).memory_need().weights_bytes < Worker(plain).memory_need().weights_bytes
    # What another --quantization would take: it holds for both, but for a draft model that has its own.
    kept = msgspec.structs.replace(
        plain, speculative_config='{"method": "draft_model", "quantization": "none"}'
    )
    alternatives = [Worker(each).memory_need().alternatives["int8"] for each in (plain, coded, kept)]
    assert alternatives[0] == alternatives[1] < alternatives[2]
    requests = [
        Served([8 + seed, 9, 10], SequenceSampling(seed=seed, max_tokens=30, ignore_eos=True, logprobs=0))
        for seed in range(3)
    ]
    heard = []
    for config, max_drafts in ((plain, 0), (coded, 4)):
        worker = Worker(config)
        loop = Loop(worker, config, worker.load(), max_drafts=max_drafts)
        served = [each.again() for each in requests]
        loop.run(served)
        heard.append([each.heard() for each in served])
    assert heard[0] == heard[1]
    assert worker.loaded is not None
    assert worker.loaded.draft is not None
    assert (worker.loaded.quantization, worker.loaded.draft.quantization) == ("none", "int8")
    assert loop.engine.stats().accepted_draft_tokens > 0


def test_its_quantization_is_refused_by_the_field_that_asked_for_it(tmp_path: Path) -> None:
    config = WorkerConfig(
        model=str(write_tiny_llama(tmp_path / "model")),
        speculative_config='{"method": "draft_model", "quantization": "int4"}',
        speculative_model=str(write_draft(tmp_path / "draft", noise=0.0)),
    )
    with pytest.raises(ConfigError, match="--speculative-config: quantization int4 needs bfloat16"):
        Worker(config).load()


def test_its_blocks_are_counted_and_move_to_host_memory_and_back(
    loaded: tuple[Worker, WorkerConfig],
) -> None:
    worker, _ = loaded
    assert worker.load().block_bytes == 2 * (2 * NUM_LAYERS * NUM_KV_HEADS * 4 * HEAD_DIM * 4)
    worker.init_kv_cache(NUM_BLOCKS, 6)
    always = always_draft(worker, num_host_blocks=6)
    tokens = [(31 * i) % VOCAB for i in range(13)]
    sampling = SequenceSampling(seed=5)

    def run(row: int, new: NewRow, freed: list[int], moves: list[tuple[int, int]]) -> list[int]:
        """Compute all that a new row has and has not, with two drafts."""
        count = len(unpack_int32(new.token_ids)) - new.num_computed_tokens
        sources, targets = (pack_int32([move[i] for move in moves]) for i in (0, 1))
        step = SchedulerOutput(
            1,
            pack_int32([row]),
            pack_int32([count]),
            [new],
            pack_int32(freed),
            moves_from=sources,
            moves_to=targets,
            max_drafts=2,
        )
        return unpack_int32(worker.execute(step).token_ids).tolist()

    def row(index: int, known: list[int], blocks: list[int], num_computed: int = 0) -> NewRow:
        return NewRow(index, pack_int32(known), 13, num_computed, pack_int32(blocks), sampling)

    found = run(0, row(0, tokens, [3, 7, 5, 9]), [], [])
    host = [NUM_BLOCKS + 2, NUM_BLOCKS, NUM_BLOCKS + 1]
    # Others have the blocks in the meantime, and are drafted for.
    run(1, row(1, [9] * 13, [3, 7, 5, 9]), [0], list(zip([3, 7, 5], host, strict=True)))
    back = row(0, [*tokens, *found], [7, 20, 3, 4, 6], num_computed=12)
    run(0, back, [1], list(zip(host, [7, 20, 3], strict=True)))
    # Three blocks came back; of the others nothing had to be believed.
    assert always.seen["drafted"] == 6
    assert always.starts == [0, 0, 12]


def test_a_draft_model_is_refused_where_there_are_no_kernels_for_it(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model")
    config = WorkerConfig(
        model=str(model), num_threads=1, attention_backend="torch", speculative_model=str(model)
    )
    with pytest.raises(ConfigError, match="--speculate works with the server's own kernels"):
        Worker(config).load()
