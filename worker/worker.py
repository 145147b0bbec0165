"""One rank's model, KV cache and batch, and how they are loaded and run."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

import msgspec
import torch

from splitserve.engine_core.errors import ConfigError, WorkerError
from splitserve.engine_core.ipc.worker_messages import (
    AdapterLoaded,
    CompileGrammar,
    GrammarCompiled,
    KVCacheReady,
    LoadAdapter,
    MemoryNeed,
    MemoryReleased,
    ModelRunnerOutput,
    SchedulerOutput,
    WorkerReady,
)
from splitserve.worker.batch.input_batch import BatchLimits, InputBatch
from splitserve.worker.batch.step_graphs import StepHeld, StepInFlight
from splitserve.worker.config import WorkerConfig
from splitserve.worker.device.base import Device
from splitserve.worker.device.cuda import CudaDevice
from splitserve.worker.device.instruction_set import use_isa
from splitserve.worker.device.out_of_memory import is_out_of_memory
from splitserve.worker.device.select import open_device
from splitserve.worker.gpu_ranks import prepare_together
from splitserve.worker.grammar.compiler import GrammarCompiler
from splitserve.worker.graphs.making import make_drafted_graphs, make_graphs
from splitserve.worker.host import usable_cores
from splitserve.worker.kv_cache.arriving_caches import ArrivingCaches
from splitserve.worker.kv_cache.host_blocks import HostBlocks
from splitserve.worker.kv_cache.layout import layer_caches
from splitserve.worker.largest_step import blocks_of_largest_step, run_largest_step
from splitserve.worker.lora.loader import AdapterLoader
from splitserve.worker.memory.need import explained, memory_need
from splitserve.worker.model_runner import ModelRunner, max_logits_rows
from splitserve.worker.models.asked_model import ask
from splitserve.worker.models.loaded_model import LoadedModel
from splitserve.worker.numerics import numerics
from splitserve.worker.ops.cpu import ops
from splitserve.worker.parallel.mesh import ALONE, Mesh
from splitserve.worker.parallel.shared_memory import SharedMemoryMeeting, can_share_memory
from splitserve.worker.sampling.answers import Answers
from splitserve.worker.sampling.pooler import Pooler
from splitserve.worker.sampling.sampler import Sampler
from splitserve.worker.speculation.draft_heads.making import make_model_drafter
from splitserve.worker.speculation.drafters import make_speculator, make_stage_drafting
from splitserve.worker.speculation.drafting import Drafting
from splitserve.worker.speculation.shared_drafts import SharedDrafts
from splitserve.worker.speculation.stage_drafting import StageDrafting
from splitserve.worker.warm_up import warm_up
from splitserve.worker.weights.loading import Loader, Progress, load_weights
from splitserve.worker.weights.room import NoRoomError

if TYPE_CHECKING:
    from splitserve.worker.parallel.distributed import DistributedMeeting

# A mask takes some 10 us, so a few threads make those of a large batch within a step.
_MAX_MASK_THREADS = 8


def _no_progress(loaded_bytes: int, total_bytes: int) -> None:
    pass


class Worker:
    """The core of a worker process; tests run it without a process.

    Life: load() -> init_kv_cache() -> execute() any number of times. One thread.

    Attributes:
        loaded: the model and where it is, once load() has returned.
        runner: of the steps, once init_kv_cache() has returned.
        grammars: compiles those of requests, once load() has returned.
        adapters: loads those of requests, once load() has returned.
    """

    def __init__(
        self, config: WorkerConfig, device: Device | None = None, loader: Loader = load_weights
    ) -> None:
        """Find the device, set instruction set and thread counts; nothing is loaded yet.

        Args:
            config: what the worker was told.
            device: to compute on; None takes the one that the configuration names.
            loader: fills the weights.

        Raises:
            ConfigError: a value is out of range, or device or instruction set cannot be used.
        """
        config.validate()
        self._config = config
        self._device = device or open_device(
            config.device,
            config.place.rank,
            config.gpu_memory_utilization,
            config.num_local_ranks,
            config.batch_invariant,
        )
        if self._device.torch_device.type == "cpu":
            use_isa(config.isa)
        self._loader = loader
        self.loaded: LoadedModel | None = None
        self.runner: ModelRunner | None = None
        self._meeting: SharedMemoryMeeting | DistributedMeeting | None = None
        _use_threads(config.num_threads or max(1, usable_cores() // config.num_local_ranks))

    def load(self, progress: Progress = _no_progress) -> WorkerReady:
        """Load the checkpoint.

        Args:
            progress: called with bytes loaded and bytes in total.

        Raises:
            ConfigError: the configuration does not fit the checkpoint or the device.
            ModelLoadError: the checkpoint cannot be served; the message names the file and the reason.
            RankLostError: the other ranks cannot be reached.
        """
        started = time.perf_counter()
        asked = ask(self._config, self._device, self._meet)
        config = asked.config
        self.grammars = GrammarCompiler(self._config.model, config.vocab_size, config.eos_token_ids)
        if self._config.place.rank == self._config.output_rank:
            # Beside the weights.
            self.grammars.prepare()
        try:
            self.loaded = loaded = asked.load(progress, self._loader)
        except NoRoomError as error:
            raise explained(error, asked) from None
        self.adapters = AdapterLoader(loaded.model.adapters, asked.dtype)
        if self._meeting is not None:
            self._meeting.begin(self._config.exchange_timeout_s)
            if isinstance(self._device, CudaDevice):
                self._device.longest_wait_s = self._config.exchange_timeout_s
        return WorkerReady(
            model=msgspec.structs.replace(loaded.info, numerics=numerics(self._config, loaded)),
            block_bytes=loaded.block_bytes(self._config.block_size),
            available_bytes=self._cache_bytes(loaded),
            load_s=time.perf_counter() - started,
        )

    def memory_need(self) -> MemoryNeed:
        """Return what the model will take, in the place of load(), whose errors it raises."""
        return memory_need(ask(self._config, self._device, self._meet), self._config)

    def init_kv_cache(self, num_blocks: int, num_host_blocks: int = 0) -> KVCacheReady:
        """Allocate KV cache, CPU offload tier and the batch, in place of those before; run a warm-up pass.

        Args:
            num_blocks: blocks of the pool that steps compute in; 0 for a model that needs none.
            num_host_blocks: blocks of the CPU offload tier; 0 for none.

        Raises:
            ConfigError: not even one block, or the memory is not there.
            WorkerError: called before load().
        """
        if self.loaded is None:
            raise WorkerError("the KV cache was asked for before the model was loaded")
        if num_blocks < 1 and self.loaded.model.num_layers:
            raise ConfigError("the KV cache needs at least one block")
        # Its memory is free before the new one's is counted. Moves may still be using its offload tier, which
        # torch's allocator, that knows nothing of them, would hand out at once.
        self._device.synchronize()
        self.runner = None
        limits = _limits(self._config, self.loaded, num_blocks)
        self.runner, host_blocks = self._make_runner(self.loaded, limits, num_host_blocks)
        if self._has_gpu_peers:
            prepare_together(self.runner, limits)
        warm_up(self.runner, limits)
        return KVCacheReady(num_blocks, _move_ns(host_blocks, self.runner.drafting))

    def release_kv_cache(self) -> MemoryReleased:
        """Free KV cache, offload tier, batch and recorded steps until init_kv_cache(); the weights stay."""
        self._device.synchronize()
        self.runner = None
        # What was permanent when it was made is not any more.
        gc.unfreeze()
        gc.collect()
        self._device.release_unused()
        return MemoryReleased()

    @property
    def _has_gpu_peers(self) -> bool:
        """Whether other ranks cannot be told, amid a step, that this one has no memory for it."""
        return self._config.num_ranks > 1 and isinstance(self._device, CudaDevice)

    def compile(self, message: CompileGrammar) -> GrammarCompiled:
        """Have a grammar ready."""
        return self.grammars.answer(message)

    def load_adapter(self, message: LoadAdapter) -> AdapterLoaded:
        """Have an adapter in its slot, which no row of a step uses."""
        return self.adapters.load(message)

    def close(self) -> None:
        """Leave the other ranks."""
        if self.loaded is not None:
            self.grammars.close()
            self.adapters.close()
        if self._meeting is not None:
            self._meeting.part()
            self._meeting = None

    def _meet(self) -> Mesh:
        if self._config.num_ranks == 1:
            return ALONE
        if self._config.pipeline_parallel_size == 1 and can_share_memory(self._config, self._device):
            self._meeting = SharedMemoryMeeting(self._config)
        else:
            # torch.distributed takes 0.3 s to import.
            from splitserve.worker.parallel.distributed import DistributedMeeting

            self._meeting = DistributedMeeting(self._config, self._device)
        return self._meeting.mesh

    def _make_runner(
        self, loaded: LoadedModel, limits: BatchLimits, num_host_blocks: int = 0
    ) -> tuple[ModelRunner, HostBlocks]:
        shape = loaded.block_shape(limits.block_size)
        try:
            is_pipelined = loaded.placement.mesh.stage is not None
            batch = InputBatch(limits, list(loaded.config.eos_token_ids), is_pipelined=is_pipelined)
            pool = loaded.placement.backend.allocate(shape, limits.num_blocks)
        except (OSError, MemoryError, RuntimeError) as error:
            raise ConfigError(f"no memory for a KV cache of {limits.num_blocks} blocks: {error}") from None
        host_blocks = HostBlocks(self._device, pool, shape, num_host_blocks)
        caches = ArrivingCaches(layer_caches(pool, loaded.layer_places))
        max_rows = max_logits_rows(self._device, limits.vocab_size)
        graphs = None
        if not self._config.enforce_eager:
            speculation = self._config.speculation
            max_drafts = 0 if speculation is None else speculation.num_speculative_tokens
            graphs = make_graphs(loaded, caches, batch, max_rows, max_drafts=max_drafts)
        sampler = Sampler(self._device, batch, self.grammars, _num_mask_threads(self._config, self._device))
        drafting = _make_drafting(self._config, loaded, sampler, num_host_blocks)
        if isinstance(drafting, Drafting):
            drafted = make_drafted_graphs(graphs, loaded, caches, batch)
            drafting = drafting._replace(graphs=drafted, plain_graphs=graphs)
        pooler = _make_pooler(loaded, batch)
        parts = loaded.placement, loaded.model, caches, host_blocks, sampler, graphs, pooler, drafting
        return ModelRunner(*parts), host_blocks

    def _cache_bytes(self, loaded: LoadedModel) -> int:
        if not loaded.model.num_layers:
            return 0
        return self._config.kv_cache_memory_bytes or self._default_cache_bytes()

    def _default_cache_bytes(self) -> int:
        """Ask the device, which may measure what a step takes beside the cache."""
        try:
            return self._device.default_cache_bytes(self._run_largest_step)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            tokens = self._config.max_num_batched_tokens
            raise ConfigError(
                f"the weights leave no memory for a step of --max-num-batched-tokens {tokens}: {error}"
            ) from None

    def _run_largest_step(self) -> int:
        """Run a step of the largest kind on a KV cache of its own; returns the bytes of that cache."""
        assert self.loaded is not None, "weights are there before memory is counted"
        limits = _limits(self._config, self.loaded, num_blocks=0)
        limits = limits._replace(num_blocks=blocks_of_largest_step(limits))
        runner, _ = self._make_runner(self.loaded, limits)
        run_largest_step(runner, limits)
        # The largest graph; its memory stays with the device for all the others.
        runner.prepare_ahead()
        self._device.synchronize()
        return limits.num_blocks * self.loaded.block_bytes(limits.block_size)

    def forget_batch(self) -> None:
        """Free all rows, as a step would that names them; KV cache and recorded steps stay.

        Call with no step in flight.
        """
        if self.runner is not None:
            self.runner.forget_batch()
            self._device.synchronize()

    def can_follow(self, step: SchedulerOutput) -> bool:
        """Whether a step may begin while another is still in flight on the device."""
        return self.runner is not None and self.runner.can_follow(step)

    def prepare_ahead(self) -> bool:
        """Use idle time, with no step in flight; returns whether there is more to prepare.

        Does nothing with several ranks, as they are not idle at the same time.
        """
        if self.runner is None or self._config.num_ranks > 1:
            return False
        return self.runner.prepare_ahead()

    def begin(self, step: SchedulerOutput) -> ModelRunnerOutput | StepInFlight | StepHeld:
        """Run one step, or on an asynchronous device leave it in flight; see ModelRunner.begin."""
        if self.runner is None:
            raise WorkerError("a step came before the KV cache was asked for")
        return self.runner.begin(step)

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step to its end; raises what begin() raises."""
        if self.runner is None:
            raise WorkerError("a step came before the KV cache was asked for")
        return self.runner.execute(step)


def _use_threads(count: int) -> None:
    torch.set_num_threads(count)
    ops.set_num_threads(count)


def _limits(asked: WorkerConfig, loaded: LoadedModel, num_blocks: int) -> BatchLimits:
    config, groups = loaded.config, loaded.layer_groups
    return BatchLimits(
        max_num_seqs=asked.max_num_seqs,
        max_num_batched_tokens=asked.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        block_size=asked.block_size,
        num_blocks=num_blocks,
        vocab_size=config.vocab_size,
        num_adapters=asked.num_adapter_slots,
        group_windows=groups.windows,
    )


def _num_mask_threads(config: WorkerConfig, device: Device) -> int:
    """How many threads may make masks beside a step: on the cores that the kernels leave, at least one.

    More would take turns with the kernels' threads, each of which the others wait for.
    """
    num_busy = torch.get_num_threads() if device.torch_device.type == "cpu" else 1
    return max(1, min(_MAX_MASK_THREADS, usable_cores() // config.num_local_ranks - num_busy))


def _make_drafting(
    config: WorkerConfig, loaded: LoadedModel, sampler: Sampler, num_host_blocks: int
) -> Drafting | StageDrafting | None:
    """Return what drafts for the sampler's batch, without the graphs of the model; None for nothing."""
    if config.speculation is None or loaded.pooling is not None:
        return None
    device, _backend, mesh = loaded.placement
    draft = make_model_drafter(loaded, sampler, num_host_blocks, records=not config.enforce_eager)
    max_rows = max_logits_rows(device, loaded.config.vocab_size)
    drafters = config.speculation if config.place.rank == config.output_rank else None
    if mesh.stage is not None:
        return make_stage_drafting(sampler, drafters, max_rows, draft)
    shared = None if mesh.group is None else SharedDrafts(mesh.group, device, sampler.batch)
    speculator = make_speculator(sampler.batch, sampler.grammars, drafters, max_rows, draft)
    return Drafting(speculator, sampler.grammars, None, draft, shared=shared)


def _make_pooler(loaded: LoadedModel, batch: InputBatch) -> Pooler | None:
    if loaded.pooling is None:
        return None
    device = loaded.placement.device
    if loaded.pooling.judge is not None:
        max_rows = max_logits_rows(device, loaded.config.vocab_size)
        return Pooler(device, classify=Answers(loaded.model, loaded.pooling.judge, max_rows), is_shared=True)
    classify = None if loaded.config.classifier is None else loaded.model.compute_logits
    return Pooler(
        device,
        loaded.pooling.mode,
        loaded.dense,
        classify,
        pools_tokens=batch.pools_tokens,
        num_rows=batch.limits.max_num_seqs,
    )


def _move_ns(host_blocks: HostBlocks, drafting: Drafting | StageDrafting | None) -> int:
    """Of a block, in the caches of the model and of its draft model."""
    draft = None if drafting is None else drafting.draft_model
    return host_blocks.measure_ns() + (0 if draft is None else draft.host_blocks.measure_ns())
