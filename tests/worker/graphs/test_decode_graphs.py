"""Recorded decode steps give the bits of eager ones, whatever happens to rows and memory between them."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from splitserve.engine_core.errors import ProtocolError, WorkerError
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.checkpoints import VOCAB_SIZE, CheckpointCache
from tests.worker.graphs.pairing import Pair, batch_of, count_calls, decoding_jobs, masked_sampling, pair_of
from tests.worker.models.cases import CASES, MAIN_CASES
from tests.worker.runner.checkpoints import EOS, MAX_LEN, VOCAB, write_tiny_llama
from tests.worker.runner.driver import Driver

NUM_BLOCKS, NUM_HOST_BLOCKS = 96, 40
FORMATS = [("float32", "none"), ("bfloat16", "none"), ("bfloat16", "int8"), ("bfloat16", "int4")]


@pytest.fixture(scope="module")
def pair(tiny_llama: Path) -> Pair:
    """Its buffers have grown with a step of all rows and tokens, so no step of a test drops recordings."""
    pair = pair_of(tiny_llama)
    rows = [
        new_row(row, [4] * (59 if row == 0 else 1), list(range(15 * row, 15 * row + 15))) for row in range(6)
    ]
    pair.execute(step({row.row: row.num_prompt_tokens for row in rows}, *rows))
    return pair


@pytest.fixture
def fresh(pair: Pair) -> Pair:
    """The pair with empty batches and no recordings."""
    for worker in pair.workers:
        worker.init_kv_cache(NUM_BLOCKS, NUM_HOST_BLOCKS)
    return pair


def new_row(row: int, tokens: list[int], block_ids: list[int], **params: object) -> NewRow:
    sampling = SequenceSampling(**({"seed": row, "temperature": 0.9} | params))  # type: ignore[arg-type]
    return NewRow(row, pack_int32(tokens), len(tokens), 0, pack_int32(block_ids), sampling)


def step(counts: dict[int, int], *new_rows: NewRow, **columns: list[int]) -> SchedulerOutput:
    packed: dict[str, Any] = {name: pack_int32(values) for name, values in columns.items()}
    rows, num_tokens = pack_int32(list(counts)), pack_int32(list(counts.values()))
    return SchedulerOutput(1, rows, num_tokens, list(new_rows), **packed)


def decode(*rows: int, **columns: list[int]) -> SchedulerOutput:
    return step(dict.fromkeys(rows, 1), **columns)


def two_rows(pair: Pair, **params: object) -> None:
    """Rows 0 and 1 with room for eight tokens each, steps of both and of one of them recorded."""
    rows = new_row(0, [4, 5, 6], [10, 11], **params), new_row(1, [7], [20, 21])
    pair.execute(step({0: 3, 1: 1}, *rows))
    for rows_of_step in ((0, 1), (1, 0), (1,), (0,)):
        pair.execute(decode(*rows_of_step))


@pytest.mark.parametrize("featured", [0, 0.5])
@pytest.mark.parametrize("seed", range(6))
def test_random_batches_end_alike(
    fresh: Pair, seed: int, featured: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, rng = count_calls(monkeypatch), random.Random(seed)
    driver = Driver(fresh, fresh.config, NUM_BLOCKS, rng, NUM_HOST_BLOCKS)
    driver.run(decoding_jobs(rng, VOCAB, featured))
    assert driver.host.num_loads > 0
    assert calls.forward > 20
    assert featured or calls.draw > 10


@pytest.mark.parametrize("seed", range(4))
def test_rows_with_masks_end_alike(fresh: Pair, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, rng = count_calls(monkeypatch), random.Random(seed)
    jobs = decoding_jobs(rng, VOCAB, featured=0)
    for job in jobs:
        job.sampling = masked_sampling(rng, VOCAB)
    Driver(fresh, fresh.config, NUM_BLOCKS, rng, NUM_HOST_BLOCKS).run(jobs)
    assert calls.masked > 10


def test_a_row_whose_mask_leaves_no_token_fails_alone(fresh: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    without_eos = tuple(token_id for token_id in range(VOCAB) if token_id != EOS)
    ends = new_row(0, [4, 5, 6], [10, 11, 12], grammar="start: /[ab]{6}/", allowed_token_ids=without_eos)
    ended = fresh.execute(step({0: 3, 1: 1}, ends, new_row(1, [7], [20, 21, 22])))
    calls = count_calls(monkeypatch)
    while not ended.errors:
        ended = fresh.execute(decode(1, 0))
    assert [(error.row, error.code) for error in ended.errors] == [(0, "no_token_left")]
    assert unpack_int32(ended.rows).tolist() == [1]
    assert calls.masked > 0


@pytest.mark.parametrize("case", MAIN_CASES)
@pytest.mark.parametrize(("dtype", "quantization"), FORMATS)
def test_every_architecture_and_format_ends_alike(
    case: str, dtype: str, quantization: str, checkpoints: CheckpointCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = dataclasses.replace(CASES[case], dtype=getattr(torch, dtype))
    pair = pair_of(checkpoints.get(spec), dtype=dtype, quantization=quantization, max_model_len=160)
    calls, rng = count_calls(monkeypatch), random.Random(7)
    jobs = decoding_jobs(rng, VOCAB_SIZE, featured=0)
    num_groups = pair.num_window_groups
    Driver(pair, pair.config, NUM_BLOCKS, rng, NUM_HOST_BLOCKS, num_window_groups=num_groups).run(jobs)
    assert calls.draw > 20


@settings(max_examples=25)
@given(data=st.data())
def test_any_order_of_rows_blocks_and_replacements_ends_alike(pair: Pair, data: st.DataObject) -> None:
    """Rows of one block group each come, decode in any company and order, and are replaced within a step."""
    for worker in pair.workers:
        worker.init_kv_cache(NUM_BLOCKS)
    lengths: dict[int, int] = {}
    for _ in range(data.draw(st.integers(5, 30))):
        freed = data.draw(st.sets(st.sampled_from(sorted(lengths)), max_size=2)) if lengths else set()
        for row in freed:
            del lengths[row]
        free = sorted(set(range(4)) - lengths.keys())
        entering = data.draw(st.sets(st.sampled_from(free), max_size=2)) if free else set()
        new_rows = []
        for row in sorted(entering):
            prompt = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=2))
            new_rows.append(new_row(row, prompt, [20 * row], **_params(data)))
        chosen = [row for row in data.draw(st.permutations(sorted(lengths))) if lengths[row] < 70]
        counts = {new.row: new.num_prompt_tokens for new in new_rows} | dict.fromkeys(chosen, 1)
        # A block is added when the one before is full.
        grown = [row for row in chosen if lengths[row] % 4 == 0]
        blocks = [20 * row + lengths[row] // 4 for row in grown]
        pair.execute(step(counts, *new_rows, freed_rows=sorted(freed), block_rows=grown, block_ids=blocks))
        lengths |= {row: lengths[row] + 1 for row in chosen}
        lengths |= {new.row: new.num_prompt_tokens for new in new_rows}


def _params(data: st.DataObject) -> dict[str, object]:
    return data.draw(st.sampled_from([{}, {"temperature": 0.0}, {"top_k": 5}, {"logprobs": 2}]))


def test_a_step_is_recorded_when_its_number_of_rows_is_met_again(
    fresh: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_calls(monkeypatch)
    fresh.execute(step({i: 1 for i in range(3)}, *(new_row(i, [4], [20 * i, 20 * i + 1]) for i in range(3))))
    seen = [calls.forward]
    for rows in ((0, 1), (2, 0), (2, 1, 0), (1, 2)):
        fresh.execute(decode(*rows))
        seen.append(calls.forward)
    assert seen == [0, 0, 1, 2, 3]


def test_a_chunk_of_one_token_and_a_prompt_to_score_take_the_sampler(
    fresh: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_rows(fresh)
    calls = count_calls(monkeypatch)
    fresh.execute(decode(0, 1))
    third = new_row(2, [9, 8, 7], [30], prompt_logprobs=1)
    first = fresh.execute(step({0: 1, 2: 1}, third))
    assert (calls.forward, calls.draw) == (2, 1)
    assert unpack_int32(first.rows).tolist() == [0]
    assert [entry.key for entry in first.prompt_logprobs] == [2]
    fresh.execute(step({2: 1, 1: 1}))
    assert (calls.forward, calls.draw) == (3, 1)
    # The prompt is scored, so the row has no feature any more.
    last = fresh.execute(decode(2))
    assert unpack_int32(last.rows).tolist() == [2]
    assert (calls.forward, calls.draw) == (4, 2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (decode(5), "5 is not in the batch"),
        (decode(6), "6 is outside the batch"),
        (decode(-1), "-1 is outside the batch"),
        (decode(0, 3), "3 is not in the batch"),
        (decode(0, freed_rows=[0]), "0 is not in the batch"),
        (step({0: 2}), "row 0"),
        (step({0: 0}), "row 0"),
        (step({0: 1}, freed_rows=[1], block_rows=[1], block_ids=[3]), "not in the batch"),
        (decode(0, block_rows=[0], block_ids=[NUM_BLOCKS]), "outside the KV cache"),
        (decode(0, moves_from=[-1], moves_to=[0]), "places to move"),
    ],
)
def test_a_step_that_does_not_fit_the_batch_is_refused(
    fresh: Pair, wrong: SchedulerOutput, message: str
) -> None:
    two_rows(fresh)
    worker = fresh.workers[0]
    before = batch_of(worker).num_computed.copy()
    with pytest.raises(WorkerError, match=message):
        worker.execute(wrong)
    assert (batch_of(worker).num_computed == before).all()


def test_a_row_without_a_block_is_refused_before_any_row_advances(fresh: Pair) -> None:
    two_rows(fresh)
    for _ in range(2):
        fresh.execute(decode(0))
    worker = fresh.workers[0]
    before = batch_of(worker).num_computed.copy()
    with pytest.raises(WorkerError, match=r"row 0 would compute up to token 9 .* and 2 blocks"):
        worker.execute(decode(1, 0))
    assert (batch_of(worker).num_computed == before).all()


def test_a_row_is_not_computed_beyond_the_context(fresh: Pair) -> None:
    two_rows(fresh)
    blocks = list(range(40, 40 + MAX_LEN // 4 + 1))
    prompt = [3 + i % 50 for i in range(MAX_LEN - 1)]
    fresh.execute(step({2: 60}, new_row(2, prompt, blocks)))
    for count in (60, 60, 11, 1):
        fresh.execute(step({2: count}))
    with pytest.raises(WorkerError, match=f"up to token {MAX_LEN + 1} of {MAX_LEN}"):
        fresh.workers[0].execute(decode(2))


def test_malformed_columns_are_refused(fresh: Pair) -> None:
    two_rows(fresh)
    for rows, num_tokens in ((b"abc", b"abc"), (b"abcde", b"abcde"), (pack_int32([0]), b"\1\0\0")):
        with pytest.raises(ProtocolError):
            fresh.workers[0].execute(SchedulerOutput(1, rows, num_tokens))


def test_a_row_that_gets_no_number_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison = 300
    pair = pair_of(write_tiny_llama(tmp_path, poisoned_token=poison))
    two_rows(pair)
    calls = count_calls(monkeypatch)
    # As if the row had drawn the poisoned token: what it computes next is not a number.
    for worker in pair.workers:
        batch = batch_of(worker)
        batch.tokens[1, batch.num_computed[1]] = poison
    first = pair.execute(decode(0, 1))
    assert calls.draw == 1
    assert [error.code for error in first.errors] == ["numerical_error"]
    assert unpack_int32(first.rows).tolist() == [0]
    second = pair.execute(decode(0, 1))
    assert second.errors == first.errors
    pair.execute(decode(0, freed_rows=[1], block_rows=[0], block_ids=[12]))


def test_recordings_are_dropped_when_the_buffers_move(fresh: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    two_rows(fresh)
    calls = count_calls(monkeypatch)
    fresh.execute(decode(1))
    assert calls.forward == 1
    for worker in fresh.workers:
        assert worker.loaded is not None
        workspace = worker.loaded.model.workspace
        for role, buffer in list(workspace._buffers.items()):
            # A larger step replaces them so; the old memory must not be read any more.
            workspace.take(role, 1, buffer.numel() + 1, buffer.dtype)
            with torch.inference_mode():
                buffer.fill_(torch.nan)
    fresh.execute(decode(1))
    assert calls.forward == 1
    fresh.execute(decode(1))
    assert calls.forward == 2


@pytest.mark.parametrize(
    ("where", "limit"),
    [
        ("splitserve.worker.graphs.decode_graphs.MAX_GRAPH_ROWS", 1),
        ("splitserve.worker.worker.max_logits_rows", lambda device, vocab_size: 1),
    ],
    ids=["recordings", "logits"],
)
def test_steps_of_more_rows_than_are_recorded_run_eagerly(
    where: str, limit: object, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, limit)
    pair = pair_of(tiny_llama)
    calls = count_calls(monkeypatch)
    pair.execute(step({0: 1, 1: 1}, new_row(0, [4], [10, 11]), new_row(1, [7], [20, 21])))
    for _ in range(3):
        pair.execute(decode(0, 1))
    assert calls.forward == 0
    for _ in range(2):
        pair.execute(decode(1))
    assert calls.forward == 1


def test_enforce_eager_records_nothing(fresh: Pair) -> None:
    recorded, eager = fresh.workers
    assert recorded.runner is not None
    assert recorded.runner.graphs is not None
    assert eager.runner is not None
    assert eager.runner.graphs is None
