from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.executor.simulated.model import SimulatedModel
from splitserve.engine_core.executor.simulated.shadow_kv import ShadowKV
from splitserve.engine_core.executor.simulated.tokens import (
    TokenRule,
    TokenSampler,
    make_powers,
    mix,
    reference_output,
    sequence_state,
)
from splitserve.engine_core.executor.simulated.worker import SimulatedWorker
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling

RULE = TokenRule(vocab_size=50, eos_token_ids=(0,))


def make_worker(*, verify: bool = True, num_blocks: int = 8, num_host_blocks: int = 2) -> SimulatedWorker:
    worker = SimulatedWorker(SimulatedModel(RULE, verify=verify, block_size=4))
    worker.init_kv_cache(num_blocks, num_host_blocks)
    return worker


def new_row(
    row: int = 0, tokens: tuple[int, ...] = (1, 2, 3), blocks: tuple[int, ...] = (0,), computed: int = 0
) -> NewRow:
    return NewRow(
        row, pack_int32(tokens), len(tokens), computed, pack_int32(blocks), SequenceSampling(seed=5)
    )


def step(rows: dict[int, int], *new_rows: NewRow, **columns: list[int]) -> SchedulerOutput:
    packed: dict[str, Any] = {name: pack_int32(values) for name, values in columns.items()}
    return SchedulerOutput(
        1, pack_int32(list(rows)), pack_int32(list(rows.values())), list(new_rows), **packed
    )


def token_ids(output: ModelRunnerOutput) -> list[int]:
    return unpack_int32(output.token_ids).tolist()


def test_a_row_samples_when_its_last_known_token_is_computed() -> None:
    worker = make_worker()
    assert token_ids(worker.execute(step({0: 2}, new_row()))) == []
    assert len(token_ids(worker.execute(step({0: 1})))) == 1
    assert len(token_ids(worker.execute(step({0: 1}, block_rows=[0], block_ids=[1])))) == 1


@pytest.mark.parametrize("verify", [True, False])
def test_tokens_are_those_of_the_reference(verify: bool) -> None:
    worker = make_worker(verify=verify)
    output = token_ids(worker.execute(step({0: 3}, new_row(blocks=(0, 1, 2)))))
    for _ in range(5):
        output += token_ids(worker.execute(step({0: 1})))
    assert output == reference_output(RULE, [1, 2, 3], SequenceSampling(seed=5, max_tokens=6), 100)


@pytest.mark.parametrize(
    ("bad_step", "message"),
    [
        (step({1: 1}), "free rows"),
        (step({0: 2}), "more tokens than a row has"),
        (step({0: 0}), "at least one token"),
        (SchedulerOutput(1, b"", b""), "at least one token"),
        (step({0: 1}, new_row(0)), "row 0 is new but was not free"),
        (step({0: 1}, freed_rows=[3]), "row 3 is freed but was free"),
        (step({0: 1}, block_rows=[0], block_ids=[0]), "given block 0 twice"),
        (step({0: 1}, block_rows=[0], block_ids=[8]), "given block 8 of 8"),
        (step({0: 1}, block_rows=[2], block_ids=[5]), "row 2, which is free"),
        (step({0: 1}, block_rows=[0], block_ids=[]), "0 blocks for 1 rows"),
        (step({1: 5}, new_row(1, (1, 2, 3, 4, 5), (1,))), "too few for 5 tokens"),
        (step({1: 1}, new_row(1, (1, 2, 3), (0,), computed=2)), "row 1 writes to block 0"),
        (step({1: 1}, new_row(1, (1, 2, 3, 4, 5), (4, 5), computed=4)), "row 1 attends to token -1"),
        (step({1: 1}, new_row(1, (1, 2, 3), (5,), computed=3)), "3 of 3 tokens are computed"),
        (step({0: 1}, moves_from=[0], moves_to=[]), "moves from 1 places to 0"),
        (step({0: 1}, moves_from=[0], moves_to=[10]), "place 10 of 10"),
        (step({0: 1}, moves_from=[-1], moves_to=[8]), "place -1 of 10"),
        (step({0: 1}, moves_from=[0], moves_to=[1]), "both on one side"),
        (step({0: 1}, moves_from=[8], moves_to=[9]), "both on one side"),
        (step({0: 1}, moves_from=[9], moves_to=[1]), "reads place 9"),
        (step({0: 1}, moves_from=[0], moves_to=[8]), "reads place 0"),
    ],
)
def test_a_step_that_breaks_the_protocol_is_refused(bad_step: SchedulerOutput, message: str) -> None:
    worker = make_worker()
    worker.execute(step({0: 3}, new_row()))
    with pytest.raises(WorkerError, match=message):
        worker.execute(bad_step)


def test_a_prefix_hit_on_other_tokens_is_found_out() -> None:
    worker = make_worker()
    worker.execute(step({0: 4}, new_row(0, (1, 2, 3, 4), (0,))))
    worker.execute(step({1: 1}, new_row(1, (1, 2, 3, 4, 9), (0, 1), computed=4)))
    with pytest.raises(WorkerError, match="attends to token 4 of position 3 where its token 7"):
        worker.execute(step({2: 1}, new_row(2, (1, 2, 3, 7, 9), (0, 2), computed=4)))


def test_a_failed_row_gives_up_its_blocks_before_the_engine_knows() -> None:
    worker = SimulatedWorker(SimulatedModel(RULE, verify=True, block_size=4, sliding_window=4))
    worker.init_kv_cache(8)
    worker.execute(step({0: 4}, new_row(0, (1, 2, 3, 4), (0,))))
    assert worker.execute(step({0: 1}, block_rows=[0], block_ids=[1]), frozenset([0])).errors
    # Planned before the failure was known: by now block 0 would have left the window of row 0.
    worker.execute(step({0: 4, 1: 3}, new_row(1, (5, 6, 7), (0,)), block_rows=[0], block_ids=[2]))


def test_content_follows_moves_in_their_order() -> None:
    worker = make_worker()
    worker.execute(step({0: 4}, new_row(0, (1, 2, 3, 4), (0,))))
    # Out to host block 0, in to block 5, which then holds what block 0 held.
    second = new_row(1, (1, 2, 3, 4, 9), (5, 6), computed=4)
    worker.execute(step({1: 1}, second, moves_from=[0, 8], moves_to=[8, 5]))
    third = new_row(2, (1, 2, 3, 4, 9), (7, 4), computed=4)
    with pytest.raises(WorkerError, match="reads place 9"):
        worker.execute(step({2: 1}, third, moves_from=[9, 0], moves_to=[7, 9]))


def test_a_host_block_overwritten_too_early_is_found_out() -> None:
    worker = make_worker(num_host_blocks=1)
    worker.execute(step({0: 4, 1: 4}, new_row(0, (1, 2, 3, 4), (0,)), new_row(1, (5, 6, 7, 8), (1,))))
    loaded = new_row(2, (1, 2, 3, 4, 9), (5, 6), computed=4)
    with pytest.raises(WorkerError, match="row 2 attends to token 5"):
        worker.execute(step({2: 1}, loaded, moves_from=[0, 1, 8], moves_to=[8, 8, 5]))


def test_a_block_taken_from_a_running_row_is_found_out() -> None:
    worker = make_worker()
    worker.execute(step({0: 3}, new_row(0)))
    worker.execute(step({1: 3}, new_row(1, (4, 5, 6), (1,)), freed_rows=[0]))
    worker.execute(step({2: 3}, new_row(2, (7, 8, 9), (0,))))
    with pytest.raises(WorkerError, match="writes to block 1"):
        worker.execute(step({3: 3}, new_row(3, (1, 1, 1), (1,))))


def test_a_block_that_drafts_take_out_of_the_window_is_free_for_others() -> None:
    shadow = ShadowKV(num_blocks=8, block_size=1, sliding_window=2)
    shadow.new_row(0, [1, 2], range(5))
    shadow.compute_drafts(0, 0, 2, [3, 4])
    for token_id in (3, 4, 5):
        shadow.append_token(0, token_id)
    shadow.new_row(1, [7], [2])
    with pytest.raises(WorkerError, match="row 1 writes to block 2, which another row uses too"):
        shadow.compute(1, 0, 1)
    shadow.keep(0, 4)
    shadow.compute(1, 0, 1)


@settings(max_examples=100)
@given(
    prompt=st.lists(st.integers(0, 49), min_size=1, max_size=30),
    seed=st.integers(0, 2**64 - 1),
    eos=st.sampled_from([(), (0,), (0, 1, 2)]),
    eos_after=st.none() | st.integers(0, 3),
    probability=st.sampled_from([0.0, 0.3]),
    cycle=st.sampled_from([(), (7, 8, 9)]),
)
def test_columns_and_plain_integers_agree(
    prompt: list[int],
    seed: int,
    eos: tuple[int, ...],
    eos_after: int | None,
    probability: float,
    cycle: tuple[int, ...],
) -> None:
    rule = TokenRule(50, eos, eos_after, probability, cycle)
    sampler = TokenSampler(rule)
    sampling = SequenceSampling(seed=seed, max_tokens=5)
    expected = reference_output(rule, prompt, sampling, 100)
    tokens = list(prompt)
    for index in range(len(expected)):
        state = np.array([sequence_state(tokens, make_powers(64))])
        seeds = mix(np.array([seed], np.uint64))
        token = sampler.sample(state, seeds, np.array([index]), np.array([True]))[0]
        assert token == expected[index]
        tokens.append(int(token))


def test_greedy_tokens_do_not_depend_on_the_seed() -> None:
    outputs = {
        tuple(reference_output(RULE, [1], SequenceSampling(temperature=temperature, seed=seed), 100))
        for temperature, seed in ((0.0, 1), (0.0, 2), (1.0, 0))
    }
    assert len(outputs) == 1
    assert tuple(reference_output(RULE, [1], SequenceSampling(seed=1), 100)) not in outputs
