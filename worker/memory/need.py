"""What a model will take of this rank's memory, and what to do if that is too much."""

from __future__ import annotations

from pathlib import Path

import torch

from splitserve.engine_core.errors import ConfigError, ModelLoadError
from splitserve.engine_core.ipc.worker_messages import MemoryNeed
from splitserve.engine_core.settings.flag_values import shown_bytes
from splitserve.worker.config import WorkerConfig
from splitserve.worker.device.base import Device
from splitserve.worker.device.dtypes import check_quantization
from splitserve.worker.layers.weight_plan import WeightPlan
from splitserve.worker.memory.activations import StepSize, activation_bytes
from splitserve.worker.model_runner import max_logits_rows
from splitserve.worker.models.asked_model import AskedModel
from splitserve.worker.models.dense_layer import load_dense
from splitserve.worker.models.loaded_model import LoadedModel
from splitserve.worker.models.registry import DeclaredModel, with_windows
from splitserve.worker.weights.loading import Progress, weigh
from splitserve.worker.weights.room import NoRoomError

# With less memory each; "w8a8" takes as much as "int8".
_SMALLER = ("int8", "int4")


def memory_need(asked: AskedModel, config: WorkerConfig) -> MemoryNeed:
    """Return what a model will take; nothing of it is loaded.

    Args:
        asked: the model.
        config: of the worker.

    Raises:
        ConfigError, ModelLoadError: as load_model.
    """
    declared, device = asked.declared(), asked.placement.device
    dense = _Scale()
    layers = [] if asked.pooling is None else load_dense(asked.pooling, asked.config, device, dense.load)
    model = _described(asked, declared)._replace(dense=layers)
    if asked.draft is not None:
        model = model._replace(draft=_described(asked.draft, asked.draft.declared()))
    weights_bytes = _declared_bytes(asked, declared) + dense.num_bytes
    step_bytes = _step_bytes(asked, declared, _largest_step(asked, config))
    block_bytes = model.block_bytes(config.block_size)
    available_bytes = config.kv_cache_memory_bytes
    if block_bytes and not available_bytes:
        available_bytes = device.planned_cache_bytes(weights_bytes, step_bytes)
    return MemoryNeed(
        model=model.info,
        device=device.name,
        free_bytes=device.free_bytes,
        weights_bytes=weights_bytes,
        activation_bytes=step_bytes,
        block_bytes=block_bytes,
        available_bytes=available_bytes,
        alternatives=_smaller(asked),
    )


def explained(error: NoRoomError, asked: AskedModel) -> ModelLoadError:
    """Return (not raise) the error with what would fit."""
    need = _smaller(asked)
    fitting = [f"{name} ({shown_bytes(size)})" for name, size in need.items() if size <= error.free_bytes]
    if fitting:
        return ModelLoadError(f"{error}; try --quantization {' or '.join(fitting)}")
    sizes = "".join(f", with --quantization {name} {shown_bytes(size)}" for name, size in need.items())
    return ModelLoadError(f"{error}{sizes}")


def _smaller(asked: AskedModel) -> dict[str, int]:
    """Return what the weights take by values of --quantization that are not asked for."""
    if asked.quantization != "none":
        return {}
    sizes = {}
    for name in _SMALLER:
        other = asked.quantized(name)
        try:
            check_quantization(name, asked.dtype, asked.placement.device)
            sizes[name] = _declared_bytes(other, other.declared())
        except ConfigError:
            # Not with this dtype, on this device or with so many ranks.
            continue
    own = _declared_bytes(asked, asked.declared())
    return {name: size for name, size in sizes.items() if size < own}


def _declared_bytes(asked: AskedModel, declared: DeclaredModel) -> int:
    path, device = Path(asked.config.path), asked.placement.device
    slots = 0
    if declared.adapters is not None:
        slots = declared.adapters.slot_bytes * asked.uses.num_adapters
    draft = 0 if asked.draft is None else _declared_bytes(asked.draft, asked.draft.declared())
    if asked.vocabulary is not None:
        _vocabulary, plan = asked.vocabulary.declared()
        draft += weigh(Path(asked.vocabulary.config.path), plan, asked.dtype, device)
    return weigh(path, declared.plan, asked.dtype, device) + slots + draft


def _step_bytes(asked: AskedModel, declared: DeclaredModel, step: StepSize) -> int:
    """Return what a step of a model that was weighed takes, for products with its weights, too."""
    device = asked.placement.device
    weights = declared.plan.step_bytes(asked.dtype, device, step.num_tokens, step.num_logits)
    return activation_bytes(asked.config, step) + weights


def _described(asked: AskedModel, declared: DeclaredModel) -> LoadedModel:
    """Return what is known of a model before it is loaded."""
    config, dtype, quantization, cache_dtype, placement, _uses, pooling, *_drafting = asked
    known = with_windows(config, declared.model)
    return LoadedModel(known, dtype, declared.model, quantization, cache_dtype, placement, pooling)


def _largest_step(asked: AskedModel, config: WorkerConfig) -> StepSize:
    device, _backend, mesh = asked.placement
    num_logits = min(
        config.max_num_seqs,
        config.max_num_batched_tokens,
        max_logits_rows(device, asked.config.vocab_size),
    )
    return StepSize(
        config.max_num_batched_tokens,
        num_logits if asked.pooling is None else 0,
        asked.dtype.itemsize,
        1 if mesh.group is None else mesh.group.size,
    )


class _Scale:
    """A loader that only adds up what would be loaded."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def load(
        self, directory: str | Path, plan: WeightPlan, dtype: torch.dtype, device: Device, progress: Progress
    ) -> None:
        self.num_bytes += weigh(Path(directory), plan, dtype, device)
