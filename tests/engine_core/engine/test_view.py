"""What an engine shows to who watches it: blocks, last steps, tenants."""

from __future__ import annotations

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.engine.view import MAX_CELLS, map_blocks
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.ipc.wire import EngineView, ModelInfo, TenantShare
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput
from splitserve.engine_core.kv_cache.block_pool import BlockPool
from splitserve.engine_core.sequence_sampling import SequenceSampling

CONFIG = SchedulerConfig(
    max_num_seqs=2, max_num_batched_tokens=64, max_model_len=64, num_blocks=8, block_size=4
)


def engine(clock: ManualClock) -> EngineCore:
    return EngineCore(CONFIG, ModelInfo("m", "X", "float32", 50, 64, [0]), 7, clock, secret=b"s" * 32)


def add(core: EngineCore, handle: int, prompt: list[int], tenant: str = "") -> None:
    sampling = SequenceSampling(seed=1, max_tokens=8)
    core.add(b"f", AddRequest(handle, f"r{handle}", pack_int32(prompt), sampling, tenant=tenant))


def step(core: EngineCore, clock: ManualClock, seconds: float) -> None:
    """Plan a step, and apply what it gives: token 3 for every row."""
    planned = core.plan()
    assert planned is not None
    clock.advance(seconds)
    rows = core.scheduler.in_flight[0].packed_sampling_rows
    core.apply(ModelRunnerOutput(planned.step, rows, pack_int32([3] * (len(rows) // 4))))


def columns(view: EngineView) -> list[list[int]]:
    steps = view.steps
    packed = (steps.time_us, steps.num_rows, steps.num_prefill_tokens, steps.num_decode_tokens)
    return [unpack_int32(column).tolist() for column in packed]


def test_steps_are_shown_with_their_times_and_tokens() -> None:
    clock = ManualClock()
    core = engine(clock)
    add(core, 1, [1, 2, 3, 4, 5])
    step(core, clock, 0.25)
    add(core, 2, [1, 2, 3])
    step(core, clock, 0.5)
    view = core.view("")
    assert columns(view) == [[250_000, 500_000], [1, 2], [5, 3], [0, 1]]
    assert unpack_int32(view.steps.ago_us).tolist() == [500_000, 0]
    assert view.max_num_seqs == 2


def test_steps_of_long_ago_are_not_shown() -> None:
    clock = ManualClock()
    core = engine(clock)
    add(core, 1, [1, 2])
    step(core, clock, 0.25)
    clock.advance(10)
    step(core, clock, 0.5)
    first = core.view("").steps.first_step
    assert len(columns(core.view(""))[0]) == 1
    clock.advance(10)
    assert columns(core.view("")) == [[], [], [], []]
    assert first > 0


def test_preemptions_are_those_since_the_step_before() -> None:
    clock = ManualClock()
    core = engine(clock)
    add(core, 1, [1, 2])
    step(core, clock, 0.1)
    core.scheduler.num_preemptions = 3
    step(core, clock, 0.1)
    step(core, clock, 0.1)
    assert unpack_int32(core.view("").steps.num_preemptions).tolist() == [0, 3, 0]


def test_blocks_are_free_cached_used_or_shared() -> None:
    pool = BlockPool(5)
    pool.allocate(4)
    pool.mark_cached([0, 2])
    pool.acquire(2)
    pool.release([0, 1])
    shown = map_blocks(pool)
    assert list(shown.states) == [1, 0, 3, 2, 0]
    assert (shown.blocks_per_cell, shown.num_idle_cached) == (1, 1)


def test_of_a_large_pool_every_nth_block_is_shown() -> None:
    pool = BlockPool(2 * MAX_CELLS + 1)
    pool.allocate(1)
    shown = map_blocks(pool)
    assert shown.blocks_per_cell == 3
    assert len(shown.states) == -(-pool.num_blocks // 3) <= MAX_CELLS
    assert list(shown.states[:2]) == [2, 0]


def test_a_pool_without_blocks_is_an_empty_map() -> None:
    assert map_blocks(BlockPool(0)).states == b""


def test_an_operator_sees_every_tenant_and_a_tenant_itself_and_how_many_others() -> None:
    clock = ManualClock()
    core = engine(clock)
    for handle, tenant in enumerate(["a", "a", "b", "c"]):
        add(core, handle, [1, 2], tenant)
    step(core, clock, 0.1)
    assert core.view("").tenants == [
        TenantShare("a", 2, 0),
        TenantShare("b", 0, 1),
        TenantShare("c", 0, 1),
    ]
    assert core.view("b").tenants == [TenantShare("b", 0, 1), TenantShare("", 2, 1, 2)]
    assert core.view("nobody").tenants == [TenantShare("", 2, 2, 3)]
