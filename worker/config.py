"""The configuration of one worker, built once by its command line and validated before torch is imported."""

from __future__ import annotations

import re

import msgspec

from splitserve.engine_core.config import (
    ATTENTION_BACKENDS,
    DEVICES,
    DTYPES,
    LOG_LEVELS,
    MAX_RANKS,
    QUANTIZATIONS,
    check_address,
    check_choice,
    check_range,
)
from splitserve.engine_core.errors import ConfigError


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker is told.

    Attributes:
        model: checkpoint directory.
        connect: ZMQ address of the engine's worker socket; empty for a worker that lives inside its caller.
        rank: index of this worker within its engine; its ZMQ identity is the decimal digits of it.
        dtype: of weights and KV cache; "auto" takes the checkpoint's.
        quantization: "none", or what weights are rounded to, "int8" or "int4".
        block_size: tokens per KV block.
        max_num_seqs: rows of the persistent batch.
        max_num_batched_tokens: most tokens one step computes.
        max_model_len: longest sequence in tokens; 0 takes the checkpoint's limit.
        num_threads: compute threads; 0 takes every core this process may use.
        kv_cache_memory_bytes: memory to offer for the KV cache; 0 derives it from what is free.
        batch_invariant: a request's bits do not depend on what runs beside it; on a CPU they never do.
        enforce_eager: run every step kernel by kernel, and record no decode steps.
        device: where to compute, "auto", "cpu" or "cuda".
        attention_backend: "auto" or one of ATTENTION_BACKENDS.
        gpu_memory_utilization: share of a GPU's memory that the worker may take.
        log_level: "debug", "info", "warning" or "error".
        tensor_parallel_size: ranks that part each layer among them.
        pipeline_parallel_size: stages that each hold some of the layers.
        rendezvous: where the ranks meet, file:///PATH or tcp://HOST:PORT; empty for a single rank.
        rendezvous_fd: rank 0's socket that listens at a tcp rendezvous; -1 makes one, on all interfaces.
        num_local_ranks: ranks that share this machine's cores and memory.
        exchange_timeout_s: longest wait for the other ranks within a step.
    """

    model: str
    connect: str = ""
    rank: int = 0
    dtype: str = "auto"
    quantization: str = "none"
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 0
    num_threads: int = 0
    kv_cache_memory_bytes: int = 0
    batch_invariant: bool = False
    enforce_eager: bool = False
    device: str = "auto"
    attention_backend: str = "auto"
    gpu_memory_utilization: float = 0.9
    log_level: str = "info"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    rendezvous: str = ""
    rendezvous_fd: int = -1
    num_local_ranks: int = 1
    exchange_timeout_s: float = 60.0

    @property
    def num_ranks(self) -> int:
        """How many ranks the engine has."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def validate(self) -> None:
        """Check every value against its range.

        Raises:
            ConfigError: names the flag and the range.
        """
        check_choice("--dtype", self.dtype, DTYPES)
        check_choice("--quantization", self.quantization, QUANTIZATIONS)
        check_choice("--device", self.device, DEVICES)
        check_choice("--attention-backend", self.attention_backend, ATTENTION_BACKENDS)
        check_range("--block-size", self.block_size, 2, 256)
        if self.block_size % 2:
            raise ConfigError(f"--block-size must be even, got {self.block_size}")
        check_range("--max-num-seqs", self.max_num_seqs, 1, 65536)
        check_range("--max-num-batched-tokens", self.max_num_batched_tokens, 1, 2**20)
        check_range("--max-model-len", self.max_model_len, 0, 2**24)
        check_range("--num-threads", self.num_threads, 0, 1024)
        check_range("--kv-cache-memory-bytes", self.kv_cache_memory_bytes, 0, 2**50)
        check_choice("--log-level", self.log_level, LOG_LEVELS)
        check_range("--gpu-memory-utilization", self.gpu_memory_utilization, 0.05, 1)
        self._check_ranks()
        if self.connect:
            check_address("--connect", self.connect)

    def _check_ranks(self) -> None:
        check_range("--tensor-parallel-size", self.tensor_parallel_size, 1, MAX_RANKS)
        check_range("--pipeline-parallel-size", self.pipeline_parallel_size, 1, MAX_RANKS)
        check_range("--rank", self.rank, 0, self.num_ranks - 1)
        check_range("--num-local-ranks", self.num_local_ranks, 1, self.num_ranks)
        check_range("--exchange-timeout", self.exchange_timeout_s, 0.1, 3600)
        is_rendezvous = re.fullmatch(r"file:///.{1,200}|tcp://[^/]{1,200}:\d{1,5}", self.rendezvous)
        if self.num_ranks > 1 and not is_rendezvous:
            raise ConfigError(
                f"--rendezvous must be file:///PATH or tcp://HOST:PORT, got {self.rendezvous!r}"
            )
