"""One rank's model, KV cache and batch: loaded once, then one step after another."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch

from engine_core.errors import ConfigError, WorkerError
from engine_core.ipc.wire import ModelInfo
from engine_core.ipc.worker_messages import (
    KVCacheReady,
    ModelRunnerOutput,
    SchedulerOutput,
    WorkerReady,
)
from worker import ops
from worker.attention.base import AttentionBackend
from worker.attention.cpu import CpuAttention
from worker.config import WorkerConfig
from worker.decode_graphs import DecodeGraphs
from worker.device.base import Device
from worker.device.cpu import CpuDevice
from worker.dtypes import check_quantization, dtype_name, resolve_dtype
from worker.host import usable_cores
from worker.host_blocks import HostBlocks
from worker.input_batch import BatchLimits, InputBatch
from worker.kv_cache import BlockShape, layer_caches
from worker.model_config import ModelConfig, read_model_config
from worker.model_runner import ModelRunner, max_logits_rows
from worker.models.base import Model
from worker.models.registry import load_model
from worker.warm_up import warm_up
from worker.weights import Progress


def _no_progress(loaded_bytes: int, total_bytes: int) -> None:
    pass


class Worker:
    """What the worker process runs, and what tests run without a process.

    Life: load() -> init_kv_cache() -> execute() any number of times. One thread.
    """

    def __init__(self, config: WorkerConfig) -> None:
        """Set the thread counts; nothing is loaded yet.

        Raises:
            ConfigError: a value is out of range.
        """
        config.validate()
        self._config = config
        self._device: Device = CpuDevice()
        self._backend: AttentionBackend = CpuAttention()
        self._loaded: _Loaded | None = None
        self._runner: ModelRunner | None = None
        num_threads = config.num_threads or usable_cores()
        torch.set_num_threads(num_threads)
        ops.set_num_threads(num_threads)

    def load(self, progress: Progress = _no_progress) -> WorkerReady:
        """Load the checkpoint.

        Args:
            progress: called with bytes loaded and bytes in total.

        Raises:
            ConfigError: the configuration does not fit the checkpoint.
            ModelLoadError: the checkpoint cannot be served; the message names the file and the reason.
        """
        started = time.perf_counter()
        config = read_model_config(self._config.model).limited_to(self._config.max_model_len)
        dtype = resolve_dtype(self._config.dtype, config)
        quantization = self._config.quantization
        check_quantization(quantization, dtype)
        model = load_model(config, dtype, self._device, self._backend, progress, quantization)
        self._loaded = loaded = _Loaded(config, dtype, model, quantization)
        return WorkerReady(
            model=_describe(loaded),
            block_bytes=loaded.block_shape(self._config.block_size).num_bytes,
            available_bytes=self._config.kv_cache_memory_bytes or self._device.default_cache_bytes(),
            load_s=time.perf_counter() - started,
        )

    def init_kv_cache(self, num_blocks: int, num_host_blocks: int = 0) -> KVCacheReady:
        """Allocate the KV cache, its host tier and the batch, in place of those before; run a warm-up pass.

        Args:
            num_blocks: blocks of the pool that steps compute in.
            num_host_blocks: blocks of the host tier; 0 for none.

        Raises:
            ConfigError: not even one block, or the memory is not there.
            WorkerError: called before load().
        """
        if self._loaded is None:
            raise WorkerError("the KV cache was asked for before the model was loaded")
        if num_blocks < 1:
            raise ConfigError("the KV cache needs at least one block")
        config, model = self._loaded.config, self._loaded.model
        # Its memory is free before the new one's is counted.
        self._runner = None
        limits = self._limits(config, num_blocks)
        shape = self._loaded.block_shape(self._config.block_size)
        try:
            batch = InputBatch(limits, list(config.eos_token_ids))
            pool = self._backend.allocate(shape, num_blocks)
        except (OSError, MemoryError, RuntimeError) as error:
            raise ConfigError(f"no memory for a KV cache of {num_blocks} blocks: {error}") from None
        host_blocks = HostBlocks(self._device, pool, shape, num_host_blocks)
        caches = layer_caches(pool)
        graphs = None
        if not self._config.enforce_eager:
            graphs = DecodeGraphs(model, caches, batch, limits, max_logits_rows(config.vocab_size))
        self._runner = ModelRunner(self._device, model, caches, host_blocks, batch, config.vocab_size, graphs)
        warm_up(self._runner, limits)
        return KVCacheReady(num_blocks, host_blocks.measure_ns())

    def _limits(self, config: ModelConfig, num_blocks: int) -> BatchLimits:
        return BatchLimits(
            max_num_seqs=self._config.max_num_seqs,
            max_num_batched_tokens=self._config.max_num_batched_tokens,
            max_model_len=config.max_model_len,
            block_size=self._config.block_size,
            num_blocks=num_blocks,
            vocab_size=config.vocab_size,
        )

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step.

        Raises:
            WorkerError: there is no KV cache yet, or engine and worker disagree about the batch.
            ProtocolError: a column is malformed.
            RuntimeError: the device failed.
        """
        if self._runner is None:
            raise WorkerError("a step came before the KV cache was asked for")
        return self._runner.execute(step)


class _Loaded(NamedTuple):
    """A model in memory."""

    config: ModelConfig
    dtype: torch.dtype
    model: Model
    quantization: str

    def block_shape(self, block_size: int) -> BlockShape:
        """What a block of block_size tokens holds of this model."""
        model = self.model
        return BlockShape(model.num_layers, model.num_kv_heads, block_size, model.head_dim, self.dtype)


def _describe(loaded: _Loaded) -> ModelInfo:
    config, dtype, model, quantization = loaded
    return ModelInfo(
        path=config.path,
        architecture=config.architecture,
        dtype=dtype_name(dtype),
        vocab_size=config.vocab_size,
        max_model_len=config.max_model_len,
        eos_token_ids=list(config.eos_token_ids),
        num_params=model.num_params,
        sliding_window=config.sliding_window,
        quantization=quantization,
    )
