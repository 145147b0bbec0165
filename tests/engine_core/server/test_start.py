"""How a start goes on from message to message, and how large the KV cache becomes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.errors import ConfigError, ModelLoadError, WorkerError
from splitserve.engine_core.executor.base import Executor
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION, ModelInfo
from splitserve.engine_core.ipc.worker_messages import (
    CompileGrammar,
    FromWorkerMessage,
    KVCacheReady,
    LoadAdapter,
    LoadProgress,
    ModelRunnerOutput,
    SchedulerOutput,
    WorkerHello,
    WorkerReady,
)
from splitserve.engine_core.process.progress import StartupReport
from splitserve.engine_core.server.kv_sizing import scheduler_config, size_kv_cache
from splitserve.engine_core.server.startup import Startup

MODEL = ModelInfo("m", "LlamaForCausalLM", "bfloat16", 1000, 1000, [2])
HELLO = WorkerHello(PROTOCOL_VERSION, "x", 0, 1)


def ready(block_bytes: int = 100, available_bytes: int = 10**9) -> WorkerReady:
    return WorkerReady(MODEL, block_bytes, available_bytes, 1.0)


class RecordingExecutor(Executor):
    def __init__(self) -> None:
        self.started = self.stopped_count = self.released_count = 0
        self.sizes: list[tuple[int, int]] = []

    def start(self) -> None:
        self.started += 1

    def restart(self) -> None:
        self.started += 1

    def stop(self) -> None:
        self.stopped_count += 1

    def init_kv_cache(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        self.sizes.append((num_blocks, num_host_blocks))

    def release_kv_cache(self) -> None:
        self.released_count += 1

    def submit(self, output: SchedulerOutput) -> None:
        raise AssertionError("no step before the start is over")

    def compile(self, message: CompileGrammar) -> None:
        """No grammar is asked for while an engine starts."""

    def load_adapter(self, message: LoadAdapter) -> None:
        """Nor an adapter."""

    def receive(self) -> list[FromWorkerMessage]:
        return []

    def shutdown(self, timeout_s: float) -> None:
        pass


def begun(config: EngineConfig) -> tuple[Startup, RecordingExecutor]:
    executor = RecordingExecutor()
    startup = Startup(config, executor, StartupReport(ManualClock()))
    startup.begin()
    return startup, executor


def test_a_start_goes_through_its_stages() -> None:
    startup, executor = begun(EngineConfig(model="m", max_num_seqs=2, max_model_len=64))
    assert (startup.stage, executor.started) == ("starting the worker", 1)
    assert startup.on_message(HELLO) is None
    assert startup.on_message(LoadProgress(1, 4)) is None
    assert (startup.stage, startup.fraction) == ("loading weights", 0.25)
    assert startup.on_message(ready()) is None
    assert (startup.stage, startup.fraction) == ("allocating the KV cache", 1.0)
    assert executor.sizes == [(8, 0)]
    loaded = startup.on_message(KVCacheReady(8))
    assert loaded is not None
    assert loaded.model == MODEL
    assert (loaded.scheduler.num_blocks, loaded.scheduler.max_model_len) == (8, 64)


def test_workers_that_are_started_again_get_what_the_first_ones_had() -> None:
    startup, executor = begun(EngineConfig(model="m", kv_cache_memory_bytes=1000))
    for message in (HELLO, ready(), KVCacheReady(7)):
        startup.on_message(message)
    startup.begin_again()
    assert (startup.stage, startup.fraction, executor.started) == ("starting the worker", 0.0, 2)
    for again in (HELLO, LoadProgress(1, 4), ready(available_bytes=10)):
        assert startup.on_message(again) is None
    assert executor.sizes == [(10, 0), (7, 0)]
    loaded = startup.on_message(KVCacheReady(7))
    assert loaded is not None
    assert loaded.scheduler.num_blocks == 7


def test_workers_that_are_started_again_must_be_like_the_first() -> None:
    startup, _executor = begun(EngineConfig(model="m", kv_cache_memory_bytes=1000))
    for message in (HELLO, ready(), KVCacheReady(7)):
        startup.on_message(message)
    startup.begin_again()
    with pytest.raises(ModelLoadError, match="another model"):
        startup.on_message(WorkerReady(msgspec.structs.replace(MODEL, vocab_size=7), 100, 10**9, 1.0))
    startup.begin_again()
    with pytest.raises(WorkerError, match="compute with AVX2 cannot go on from"):
        startup.on_message(WorkerReady(msgspec.structs.replace(MODEL, numerics="AVX2"), 100, 10**9, 1.0))
    startup.begin_again()
    startup.on_message(ready())
    with pytest.raises(WorkerError, match="6 blocks instead of 7"):
        startup.on_message(KVCacheReady(6))


def test_a_checkpoint_with_other_weights_of_the_same_model_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    startup, _executor = begun(EngineConfig(model=str(tmp_path), kv_cache_memory_bytes=1000))
    for message in (HELLO, ready(), KVCacheReady(7)):
        startup.on_message(message)
    (tmp_path / "model.safetensors").write_bytes(b"other")
    for _ in range(2):
        startup.begin_again()
        startup.on_message(ready())
    assert caplog.text.count("the checkpoint was changed while it was served") == 1


def test_the_worker_may_allocate_fewer_blocks() -> None:
    startup, _ = begun(EngineConfig(model="m"))
    startup.on_message(ready())
    loaded = startup.on_message(KVCacheReady(5))
    assert loaded is not None
    assert loaded.scheduler.num_blocks == 5


def test_the_offload_tier_is_asked_for_and_its_speed_reaches_the_scheduler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    startup, executor = begun(EngineConfig(model="m", num_blocks=8, kv_offload_gb=1e-6))
    startup.on_message(ready())
    assert executor.sizes == [(8, 10)]
    with caplog.at_level("INFO"):
        loaded = startup.on_message(KVCacheReady(8, move_block_ns=4321))
    assert loaded is not None
    assert (loaded.scheduler.num_host_blocks, loaded.scheduler.move_block_ns) == (10, 4321)
    assert "CPU offload tier blocks=10 mib=0.001 move_block_us=4.321" in caplog.text


@pytest.mark.parametrize(
    "messages",
    [
        [KVCacheReady(8)],
        [HELLO, ready(), ready()],
        [ModelRunnerOutput(1, b"", b"")],
    ],
)
def test_a_message_out_of_place_is_a_fault_of_the_worker(messages: list[FromWorkerMessage]) -> None:
    startup, _ = begun(EngineConfig(model="m"))
    for message in messages[:-1]:
        startup.on_message(message)
    with pytest.raises(WorkerError, match=type(messages[-1]).__name__):
        startup.on_message(messages[-1])


def test_progress_of_nothing_is_no_progress() -> None:
    startup, _ = begun(EngineConfig(model="m"))
    startup.on_message(LoadProgress(0, 0))
    assert startup.fraction == 0.0


@pytest.mark.parametrize(
    ("config", "num_blocks"),
    [
        # What a full batch of longest sequences can use: 4 x ceil(1000 / 16).
        (EngineConfig(model="m", max_num_seqs=4), 252),
        (EngineConfig(model="m", max_num_seqs=4, max_model_len=16), 4),
        (EngineConfig(model="m", max_num_seqs=4, max_model_len=17), 8),
        # All the memory there is, when that is less.
        (EngineConfig(model="m", max_num_seqs=10**4), 100_000),
        # What the operator says, cut by nothing.
        (EngineConfig(model="m", kv_cache_memory_bytes=12_345_678), 123_456),
        (EngineConfig(model="m", num_blocks=7, kv_cache_memory_bytes=10**9), 7),
    ],
)
def test_the_size_of_the_pool(config: EngineConfig, num_blocks: int) -> None:
    size = size_kv_cache(config, ready(available_bytes=10_000_000))
    assert size.num_blocks == num_blocks
    assert size.num_tokens == num_blocks * 16
    assert size.num_bytes == num_blocks * 100


def test_a_pool_smaller_than_one_sequence_is_allowed_and_counted() -> None:
    size = size_kv_cache(EngineConfig(model="m", num_blocks=10), ready())
    assert (size.num_tokens, size.num_full_sequences) == (160, 0)


def test_the_offload_tier_gets_the_whole_blocks_that_fit_its_memory() -> None:
    size = size_kv_cache(EngineConfig(model="m", num_blocks=10, kv_offload_gb=1.5), ready())
    num_host_blocks = 3 * 2**29 // 100
    assert (size.num_host_blocks, size.num_host_bytes) == (num_host_blocks, num_host_blocks * 100)
    assert (size.num_blocks, size.num_bytes) == (10, 1000)


@pytest.mark.parametrize(
    ("speculate", "model", "fills_blocks"),
    [("none", "", False), ("ngram", "", False), ("mtp", "", True), ("draft", "/small", True)],
)
def test_who_drafts_with_a_model_fills_blocks(speculate: str, model: str, fills_blocks: bool) -> None:
    config = EngineConfig(model="m", speculate=speculate, speculative_model=model)
    assert scheduler_config(config, MODEL, KVCacheReady(8), 0).drafts_fill_blocks == fills_blocks


@pytest.mark.parametrize(("gb", "block_bytes"), [(99 / 2**30, 100), (2**20, 1)])
def test_the_offload_tier_without_a_block_or_with_too_many_is_refused(gb: float, block_bytes: int) -> None:
    config = EngineConfig(model="m", num_blocks=10, kv_offload_gb=gb)
    with pytest.raises(ConfigError, match=r"--kv-offload-gb must be enough for 1 to 1073741824 blocks"):
        size_kv_cache(config, ready(block_bytes=block_bytes))


@pytest.mark.parametrize(
    "config", [EngineConfig(model="m"), EngineConfig(model="m", kv_cache_memory_bytes=99)]
)
def test_a_pool_without_a_block_is_refused_with_both_sizes(config: EngineConfig) -> None:
    with pytest.raises(ConfigError, match=r"99 bytes.*needs 100"):
        size_kv_cache(config, ready(available_bytes=99))


@pytest.mark.parametrize(
    ("config", "flag"),
    [
        (EngineConfig(model="m", num_blocks=2**27), "--num-blocks"),
        (EngineConfig(model="m", num_blocks=2**23, block_size=256), "--num-blocks"),
        (EngineConfig(model="m", kv_cache_memory_bytes=100 * 2**27), "--kv-cache-memory-bytes"),
    ],
)
def test_a_pool_of_more_tokens_than_a_slot_can_name_is_refused(config: EngineConfig, flag: str) -> None:
    with pytest.raises(ConfigError, match=rf"{flag} .* at most 2147483647 tokens"):
        size_kv_cache(config, ready())


def test_a_pool_that_nobody_sized_ends_at_the_last_token_that_a_slot_can_name() -> None:
    config = EngineConfig(model="m", max_num_seqs=2**24)
    assert size_kv_cache(config, ready(block_bytes=1, available_bytes=2**40)).num_tokens == 2**31 - 16


def test_a_context_beyond_the_model_is_refused_with_both_lengths() -> None:
    with pytest.raises(ConfigError, match=r"1001 .* 1000$"):
        size_kv_cache(EngineConfig(model="m", max_model_len=1001), ready())


# The shape of Gemma 3 4B: 29 of 34 layers see 1,024 tokens, and 5 see all.
LONG = msgspec.structs.replace(MODEL, max_model_len=32768)
GROUPED = msgspec.structs.replace(LONG, group_windows=[1024] * 6)
GROUPED_CONFIG = EngineConfig(model="m", max_num_seqs=64, max_num_batched_tokens=2048)


def test_window_groups_raise_the_number_of_longest_sequences_that_fit() -> None:
    # Blocks of 34 layers, and of 5.
    memory = 10**9
    whole = size_kv_cache(GROUPED_CONFIG, WorkerReady(LONG, 34 * 1000, memory, 1.0))
    grouped = size_kv_cache(GROUPED_CONFIG, WorkerReady(GROUPED, 5 * 1000, memory, 1.0))
    assert whole.num_full_sequences == 14
    assert grouped.num_full_sequences == 81
    assert grouped.num_bytes <= memory


def test_a_pool_without_a_block_for_each_group_is_refused() -> None:
    config = msgspec.structs.replace(GROUPED_CONFIG, num_blocks=6)
    with pytest.raises(ConfigError, match=r"--num-blocks: .* 7 groups"):
        size_kv_cache(config, WorkerReady(GROUPED, 5 * 1000, 10**9, 1.0))
    config = msgspec.structs.replace(GROUPED_CONFIG, num_blocks=7)
    assert size_kv_cache(config, WorkerReady(GROUPED, 5 * 1000, 10**9, 1.0)).num_tokens == 16
