"""Which model families exist, and how a checkpoint becomes a runnable model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.gguf.gguf_file import is_gguf
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.process.logs import log_event
from splitserve.worker.attention.base import AttentionBackend
from splitserve.worker.device.base import Device
from splitserve.worker.device.workspace import Workspace
from splitserve.worker.layers.adapters.adapters import AdapterLimits, Adapters
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.embedding import HEAD
from splitserve.worker.layers.weight_plan import WeightPlan
from splitserve.worker.models import decoder, encoder, gpt2, transformers_backend
from splitserve.worker.models.base import Model
from splitserve.worker.models.draft_heads import eagle3, mtp
from splitserve.worker.models.placement import Placement
from splitserve.worker.ops.quantization import FORMS
from splitserve.worker.parallel.shares import check_shares, check_stages
from splitserve.worker.weights.loading import Loader, Progress, load_weights
from splitserve.worker.weights.tied_head import as_stored

logger = logging.getLogger(__name__)


class ModelUses(NamedTuple):
    """What is asked of a model.

    Attributes:
        has_head: it has an output head of its own, unless it is tied; without one only hidden states are
            asked of it.
        makes_text: its tokens are sampled.
        num_adapters: adapters in memory at once that may change it; 0 for none.
        max_rank: of an adapter.
        tapped_layers: of a decoder, in front of which hidden states are handed out, see HiddenTaps.
    """

    has_head: bool = True
    makes_text: bool = True
    num_adapters: int = 0
    max_rank: int = 0
    tapped_layers: tuple[int, ...] = ()

    @property
    def adapter_limits(self) -> AdapterLimits:
        """Of its adapters."""
        return AdapterLimits(self.num_adapters, self.max_rank)


TEXT = ModelUses()
"""Text, without adapters."""


class Family(NamedTuple):
    """How to build the models of one family.

    Attributes:
        build: declares the layers and their weights.
        prefix: prefix of tensor names that a checkpoint of the bare model omits.
        embedding: name of the token embedding, which the output head may share; "" if only the model knows.
        takes_adapters: its linear layers may be changed by adapters.
        check: of a model whose weights are there, whether it computes what it should.
        windows: of the layers of a declared model, where its config does not say them; see ModelConfig.
    """

    build: Callable[[LayerContext, ModelConfig], Model]
    prefix: str
    embedding: str
    takes_adapters: bool = False
    check: Callable[[Model, ModelConfig, AttentionBackend], None] | None = None
    windows: Callable[[Model], tuple[int, ...]] | None = None


FAMILIES = {
    "decoder": Family(decoder.build, decoder.PREFIX, decoder.EMBEDDING, takes_adapters=True),
    "gpt2": Family(gpt2.build, gpt2.PREFIX, gpt2.EMBEDDING, takes_adapters=True),
    "transformers": Family(
        transformers_backend.build,
        "",
        "",
        check=transformers_backend.check,
        windows=transformers_backend.windows,
    ),
    # Their names differ, see EncoderTraits.
    "encoder": Family(encoder.build, "", ""),
    "eagle3": Family(eagle3.build, "", ""),
    "mtp": Family(mtp.build, decoder.PREFIX, ""),
}
"""By ModelConfig.family; the architectures are listed in engine_core/checkpoint/config/architectures.py."""


def _prediction_layers(config: ModelConfig, prefix: str) -> list[str]:
    """Return how the names of tensors begin that predict tokens farther ahead, and say so."""
    end = config.num_layers + config.num_prediction_layers
    log_event(
        logger,
        logging.INFO,
        "prediction_layers_ignored",
        path=config.path,
        layers=list(range(config.num_layers, end)),
        detail="layers that predict tokens farther ahead draft with --speculate mtp, the first of them",
    )
    return [f"{prefix}layers.{i}." for i in range(config.num_layers, end)]


def check_takes_adapters(config: ModelConfig, *, makes_text: bool) -> None:
    """Refuse a model that adapters cannot change.

    Raises:
        ConfigError: names the architecture.
    """
    if config.family == "transformers":
        what = f"{config.architecture} in the layers of the transformers library"
    elif not FAMILIES[config.family].takes_adapters:
        what = config.architecture
    elif not makes_text:
        what = "a model that makes embeddings, scores or classes"
    elif is_gguf(Path(config.path)):
        what = "a GGUF file, whose layers have another order"
    else:
        return
    raise ConfigError(f"adapters (--lora, --lora-dir) are not served with {what}")


class DeclaredModel(NamedTuple):
    """A model without its weights.

    Attributes:
        model: its layers.
        plan: the weights that these need.
        adapters: where adapters change it; None if there are none.
    """

    model: Model
    plan: WeightPlan
    adapters: Adapters | None


def load_model(
    config: ModelConfig,
    dtype: torch.dtype,
    placement: Placement[Device],
    progress: Progress,
    quantization: str = "none",
    loader: Loader = load_weights,
    uses: ModelUses = TEXT,
) -> Model:
    """Check the checkpoint against the config, then load its weights.

    Args:
        config: from read_model_config, perhaps limited_to a shorter context.
        dtype: of weights and activations.
        placement: where the weights go and the model runs.
        progress: called with (loaded_bytes, total_bytes) from this thread, first with (0, total_bytes).
        quantization: "none", "int8", "int4" or "w8a8"; dtype is bfloat16 unless it is "none".
        loader: fills the weights.
        uses: what is asked of it.

    Raises:
        ConfigError: the model cannot be sharded over this many ranks, the device cannot compute it, or it
            takes no adapters.
        ModelLoadError: names the file and tensor that is missing, has the wrong shape or is damaged; raised
            before the weights are allocated, unless a file is truncated while it is read.
    """
    device, backend, _mesh = placement
    model, plan, adapters = declare_model(config, dtype, placement, quantization, uses)
    loader(config.path, plan, dtype, device, progress)
    if adapters is not None:
        adapters.allocate(dtype, device)
    check = FAMILIES[config.family].check
    if check is not None:
        check(model, config, backend)
    return model


def with_windows(config: ModelConfig, model: Model) -> ModelConfig:
    """Return the config of a declared model with the windows of its layers."""
    windows = FAMILIES[config.family].windows
    if windows is None:
        return config
    return msgspec.structs.replace(config, sliding_windows=windows(model))


def declare_model(
    config: ModelConfig,
    dtype: torch.dtype,
    placement: Placement[Device],
    quantization: str = "none",
    uses: ModelUses = TEXT,
) -> DeclaredModel:
    """Declare a model's layers, for load_model, whose arguments these are.

    Raises:
        ConfigError: the model cannot be sharded over this many ranks, the device cannot compute it, or it
            takes no adapters.
    """
    device, backend, mesh = placement
    family = FAMILIES[config.family]
    prefix = family.prefix if config.encoder is None else config.encoder.prefix
    if not uses.has_head:
        # No checkpoint has to have a head that nobody uses, and none that it has is read.
        config = msgspec.structs.replace(config, tie_word_embeddings=True)
    else:
        config = as_stored(config, family.embedding, prefix)
    ignored = [f"{HEAD}.weight"] if config.tie_word_embeddings else []
    if config.encoder is not None:
        # A layer for training, which only some heads for labels read.
        ignored += [f"{start}pooler.dense.{part}" for start in ("", prefix) for part in ("weight", "bias")]
    if config.draft_head is not None:
        ignored += (mtp if config.family == "mtp" else eagle3).IGNORED
    if config.num_prediction_layers:
        ignored += _prediction_layers(config, prefix)
    workspace = Workspace(dtype, device.torch_device)
    adapters = None
    if uses.num_adapters:
        check_takes_adapters(config, makes_text=uses.makes_text)
        adapters = Adapters(uses.adapter_limits, device.ops, workspace)
    if mesh.group is not None:
        check_shares(config, mesh.group.size, quantization, splits_experts=mesh.splits_experts)
    if mesh.stage is not None:
        check_stages(config, mesh.stage.count)
    holds_all_tensors = mesh.stage is None and not mesh.splits_experts
    if not holds_all_tensors:
        whole = WeightPlan(prefix)
        everything = adapters and Adapters(uses.adapter_limits, device.ops, workspace)
        family.build(LayerContext(whole, workspace, backend, device.ops, adapters=everything), config)
        if adapters is not None and everything is not None:
            adapters.names = everything.names
        # Tensors of other stages, and experts of other ranks, are expected too.
        ignored += whole.names
    plan = WeightPlan(prefix, ignored, FORMS[quantization], config.quantization)
    model = family.build(LayerContext(plan, workspace, backend, device.ops, *mesh, adapters), config)
    if not holds_all_tensors:
        model.num_params = whole.num_params
    if uses.tapped_layers:
        assert isinstance(model, decoder.Decoder), "heads draft for decoders only"
        model.tap(uses.tapped_layers)
    return DeclaredModel(model, plan, adapters)
