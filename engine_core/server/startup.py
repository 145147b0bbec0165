"""How an engine starts: the stages from a loading worker to a ready engine, and the size of the KV cache.

stage                 event          next
starting the worker   WorkerHello    loading weights
loading weights       LoadProgress   loading weights
loading weights       WorkerReady    allocating the KV cache; init_kv_cache is sent
allocating ...        KVCacheReady   ready
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgspec

from splitserve.engine_core.checkpoint.state import FileState, file_states
from splitserve.engine_core.config import EngineConfig, SchedulerConfig
from splitserve.engine_core.errors import ModelLoadError, WorkerError
from splitserve.engine_core.executor.base import Executor
from splitserve.engine_core.ipc.wire import ASLEEP, ModelInfo
from splitserve.engine_core.ipc.worker_messages import (
    FromWorkerMessage,
    KVCacheReady,
    LoadProgress,
    WorkerHello,
    WorkerReady,
)
from splitserve.engine_core.process.logs import log_event
from splitserve.engine_core.process.progress import StartupReport
from splitserve.engine_core.server.kv_sizing import KVSize, scheduler_config, size_kv_cache

_log = logging.getLogger("engine_core")


class Loaded(NamedTuple):
    """Result of the start: the model, and the limits for the scheduler."""

    model: ModelInfo
    scheduler: SchedulerConfig


class _Sized(NamedTuple):
    """What is decided once the weights are loaded, while the worker allocates."""

    model: ModelInfo
    size: KVSize


class Startup:
    """Starts the executor, driven by the worker's messages; owned by the busy loop's thread.

    Attributes:
        stage, fraction: what Loading messages tell the frontends; fraction is 0..1 of the weights.
    """

    def __init__(self, config: EngineConfig, executor: Executor, report: StartupReport) -> None:
        self._config = config
        self._executor = executor
        self._report = report
        self._sized: _Sized | None = None
        self._is_loaded = False
        self._is_again = False
        self._files: list[FileState] = []
        self.stage = ""
        self.fraction = 0.0

    @property
    def longest_silence_s(self) -> float:
        """How long workers may say nothing of their start; on a cluster they first need room there."""
        config = self._config
        return config.load_timeout_s + (config.ray_timeout_s if config.executor == "ray" else 0.0)

    def begin(self) -> None:
        """Start the executor."""
        self._files = file_states(self._config.model)
        self._enter("starting the worker")
        self._executor.start()

    def begin_again(self) -> None:
        """Start lost workers again; their KV cache gets the size that the first ones' had.

        Raises:
            WorkerError: they cannot be started.
        """
        assert self._sized is not None, "the first workers were ready"
        self._is_loaded = False
        self._is_again = True
        self.fraction = 0.0
        self._enter("starting the worker")
        self._executor.restart()

    def sleep(self, *, keeps_weights: bool) -> None:
        """Have workers free their KV cache until allocate_again(), or end them until begin_again().

        Raises:
            EngineUnavailableError: the executor cannot do this.
            WorkerError: a worker is gone.
        """
        if keeps_weights:
            self._executor.release_kv_cache()
        else:
            self._executor.stop()
        self.fraction = 0.0
        self._enter(ASLEEP)

    def allocate_again(self) -> None:
        """Have workers that kept their weights allocate the KV cache that they had.

        Raises:
            WorkerError: a worker is gone.
        """
        assert self._sized is not None, "the workers were ready"
        self._is_again = True
        self._allocate(self._sized.size)

    def has_changed(self) -> bool:
        """Whether the checkpoint's files are others than those that were loaded."""
        return file_states(self._config.model) != self._files

    def on_message(self, message: FromWorkerMessage) -> Loaded | None:
        """Handle one message of the worker; return the result once the KV cache is allocated.

        Raises:
            ConfigError: the KV cache or the context length asked for does not fit the model or the memory.
            ModelLoadError: workers that were started again found another model.
            WorkerError: the message is not expected at this stage, or workers that were started again compute
                in another way.
        """
        match message:
            case WorkerHello():
                self._enter("loading weights")
            case LoadProgress(loaded_bytes=loaded, total_bytes=total):
                self.fraction = loaded / total if total > 0 else 0.0
                self._report.progress(loaded, total)
            case WorkerReady() if not self._is_loaded:
                self._on_weights(message)
            case KVCacheReady() if self._is_loaded and self._sized is not None:
                self._is_loaded = False
                return self._on_cache(message, self._sized)
            case _:
                raise WorkerError(f"the worker sent {type(message).__name__} while {self.stage}")
        return None

    def _on_weights(self, ready: WorkerReady) -> None:
        if self._sized is None:
            self._sized = _Sized(ready.model, size_kv_cache(self._config, ready))
            self._log_model(*self._sized)
        else:
            _check_same(ready.model, self._sized.model)
            self._note_changes()
        self._allocate(self._sized.size)

    def _allocate(self, size: KVSize) -> None:
        self._is_loaded = True
        self.fraction = 1.0
        self._enter("allocating the KV cache")
        self._executor.init_kv_cache(size.num_blocks, size.num_host_blocks)

    def _on_cache(self, cache: KVCacheReady, sized: _Sized) -> Loaded:
        model, size = sized
        if self._is_again and cache.num_blocks != size.num_blocks:
            raise WorkerError(
                f"the worker has {cache.num_blocks} blocks instead of {size.num_blocks}, as it had before"
            )
        self._sized = sized._replace(size=size._replace(num_blocks=cache.num_blocks))
        self._enter("")
        if size.num_host_blocks:
            log_event(
                _log,
                logging.INFO,
                "CPU offload tier",
                blocks=size.num_host_blocks,
                mib=size.num_host_bytes / 2**20,
                move_block_us=cache.move_block_ns / 1000,
            )
        return Loaded(model, scheduler_config(self._config, model, cache, size.num_host_blocks))

    def _note_changes(self) -> None:
        """Tell of files that have changed although the model is the same: streams may go on otherwise."""
        files = file_states(self._config.model)
        if files != self._files:
            self._files = files
            log_event(
                _log,
                logging.WARNING,
                "the checkpoint was changed while it was served",
                path=self._config.model,
            )

    def _enter(self, stage: str) -> None:
        self.stage = stage
        self._report.stage(stage)

    def _log_model(self, model: ModelInfo, size: KVSize) -> None:
        log_event(
            _log,
            logging.INFO,
            "model",
            path=model.path,
            architecture=model.architecture,
            dtype=model.dtype,
            quantization=model.quantization,
            parameters=model.num_params,
            max_model_len=model.max_model_len,
        )
        if not size.num_blocks:
            log_event(_log, logging.INFO, "no KV cache", longest_prompt=_longest_prompt(self._config, model))
            return
        log_event(
            _log,
            logging.INFO,
            "KV cache",
            blocks=size.num_blocks,
            tokens=size.num_tokens,
            longest_sequences=size.num_full_sequences,
            mib=size.num_bytes / 2**20,
        )
        if size.num_full_sequences < 1:
            log_event(
                _log,
                logging.WARNING,
                "the KV cache is smaller than one sequence of maximum length",
                max_tokens=size.num_tokens,
            )


def _longest_prompt(config: EngineConfig, model: ModelInfo) -> int:
    """Return the tokens of the longest prompt that one step computes whole."""
    chunk = config.max_prefill_tokens or config.max_num_batched_tokens
    return min(chunk, config.max_model_len or model.max_model_len)


def _check_same(again: ModelInfo, first: ModelInfo) -> None:
    """Raise an error unless workers that were started again serve what the first ones did."""
    if msgspec.structs.replace(again, numerics=first.numerics) != first:
        raise ModelLoadError("it holds another model now")
    if again.numerics != first.numerics:
        raise WorkerError(f"workers that compute with {again.numerics} cannot go on from {first.numerics}")
