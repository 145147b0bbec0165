"""A model that a worker is to load: what was asked for, and where it goes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from splitserve.engine_core.checkpoint.config.architectures import is_bare, read_model_config
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.draft_check import read_draft_config
from splitserve.engine_core.checkpoint.judging import read_judge
from splitserve.engine_core.checkpoint.pooling import Pooling, pooling_of_classifier, read_pooling
from splitserve.engine_core.errors import ConfigError
from splitserve.worker.attention.cpu import CpuAttention
from splitserve.worker.attention.cuda import CudaAttention
from splitserve.worker.attention.needs import AttentionNeeds
from splitserve.worker.attention.select import choose_backend
from splitserve.worker.config import WorkerConfig
from splitserve.worker.device.base import Device
from splitserve.worker.device.dtypes import check_quantization, resolve_dtype
from splitserve.worker.kv_cache.cache_dtype import resolve_cache_dtype, settle_cache
from splitserve.worker.models.dense_layer import load_dense
from splitserve.worker.models.draft_heads.whole_vocabulary import AskedVocabulary, parts_needed
from splitserve.worker.models.loaded_model import LoadedModel
from splitserve.worker.models.placement import Placement
from splitserve.worker.models.registry import (
    TEXT,
    DeclaredModel,
    ModelUses,
    declare_model,
    load_model,
    with_windows,
)
from splitserve.worker.parallel.mesh import Mesh
from splitserve.worker.weights.cache_scales import read_cache_scales
from splitserve.worker.weights.loading import Loader, Progress, weigh


class AskedModel(NamedTuple):
    """A model before its weights are there.

    Attributes:
        config: of the checkpoint, limited to the context that is served.
        dtype: of activations, and of weights that are not quantised.
        quantization: "none", "int8", "int4" or "w8a8".
        cache_dtype: of the KV cache, see BlockShape.
        placement: where it computes.
        uses: what is asked of it.
        pooling: how it makes vectors of prompts; None if it generates text.
        draft: the smaller model or head that drafts for it; None for none.
        vocabulary: see LoadedModel.
        has_own_quantization: whether it drafts, and was asked for with a quantization of its own.
    """

    config: ModelConfig
    dtype: torch.dtype
    quantization: str
    cache_dtype: torch.dtype
    placement: Placement[Device]
    uses: ModelUses
    pooling: Pooling | None = None
    draft: AskedModel | None = None
    vocabulary: AskedVocabulary | None = None
    has_own_quantization: bool = False

    def quantized(self, quantization: str) -> AskedModel:
        """Return it with another quantization, which holds for what drafts, too, unless that has its own."""
        draft = self.draft
        if draft is not None and not draft.has_own_quantization:
            draft = draft.quantized(quantization)
        vocabulary = None if self.vocabulary is None else self.vocabulary._replace(quantization=quantization)
        return self._replace(quantization=quantization, draft=draft, vocabulary=vocabulary)

    def declared(self) -> DeclaredModel:
        """Declare its layers; raises as declare_model does."""
        return declare_model(self.config, self.dtype, self.placement, self.quantization, self.uses)

    def load(self, progress: Progress, loader: Loader) -> LoadedModel:
        """Load its weights; raises as load_model and load_dense do."""
        config, dtype, quantization, cache_dtype, placement, uses, pooling, draft, vocabulary, _own = self
        if draft is not None and draft.config.draft_head is not None:
            # What is wrong with it should not be found out when the model has taken its memory.
            weigh(Path(draft.config.path), draft.declared().plan, draft.dtype, placement.device)
        model = load_model(config, dtype, placement, progress, quantization, loader, uses)
        dense = [] if pooling is None else load_dense(pooling, config, placement.device, loader)
        drafting = None if draft is None else draft.load(progress, loader)
        words = None if vocabulary is None else vocabulary.load(progress, loader)
        known = with_windows(config, model)
        return LoadedModel(
            known, dtype, model, quantization, cache_dtype, placement, pooling, dense, drafting, words
        )


def ask(asked: WorkerConfig, device: Device, meet: Callable[[], Mesh]) -> AskedModel:
    """Read what is asked for, and meet the other ranks.

    Args:
        asked: the configuration of the worker.
        device: it computes on.
        meet: called last, returns how the ranks share the model.

    Raises:
        ConfigError: the configuration does not fit the checkpoint or the device.
        ModelLoadError: a file of the checkpoint, or the task that it is asked to do.
        RankLostError: the other ranks cannot be reached.
    """
    config, pooling = _read_config(asked)
    dtype = resolve_dtype(asked.dtype, config, device)
    check_quantization(asked.quantization, dtype, device)
    cache = _settle_cache(asked, config, dtype, device)
    cache_dtype = resolve_cache_dtype(cache, config, dtype)
    needs = _attention_needs(asked, config, dtype, cache if cache_dtype != dtype else "")
    placement = Placement(device, choose_backend(asked.attention_backend, device, needs), meet())
    uses = _uses(asked, pooling)
    _check_speculation(asked, config, placement, pooling)
    model = AskedModel(config, dtype, asked.quantization, cache_dtype, placement, uses, pooling)
    return _with_draft(asked, model)


def _with_draft(asked: WorkerConfig, model: AskedModel) -> AskedModel:
    """Return the model with the draft model or head that the settings name."""
    speculation = asked.speculation
    if speculation is None or not speculation.model_method or model.pooling is not None:
        return model
    config = read_draft_config(speculation.model, model.config, speculation.model_method)
    device, _backend, mesh = model.placement
    head = config.draft_head
    if mesh.stage is not None and device.name != "cpu":
        method = speculation.model_method
        raise ConfigError(f"--speculate: {method} works with --pipeline-parallel-size on CPUs only")
    if head is not None:
        if asked.num_ranks > 1 and device.name == "cuda":
            method = speculation.model_method
            raise ConfigError(f"--speculate: the method {method} works on one GPU, not with several ranks")
        # All ranks compute steps of the same shape, though the one that samples alone is asked for states.
        model = model._replace(uses=model.uses._replace(tapped_layers=head.read_layers))
    if asked.place.rank != asked.output_rank:
        # The rank that samples drafts, and holds all of the draft model.
        return model
    draft = _ask_draft(asked, model, config)
    if head is not None and any(needs := parts_needed(model.config, head, mesh)):
        parts = model.dtype, model.quantization, draft.placement
        draft = draft._replace(vocabulary=AskedVocabulary(model.config, needs, *parts))
    return model._replace(draft=draft)


def _ask_draft(asked: WorkerConfig, model: AskedModel, config: ModelConfig) -> AskedModel:
    """Return the draft model or head of a config; dtypes are its, too, and --quantization if it has none."""
    device, is_head = model.placement.device, config.draft_head is not None
    own = "" if asked.speculation is None else asked.speculation.quantization
    quantization = own or asked.quantization
    # A head computes with what the model has computed.
    dtype = model.dtype if is_head else resolve_dtype(asked.dtype, config, device)
    flag = "--speculative-config: quantization" if own else "--quantization"
    check_quantization(quantization, dtype, device, flag)
    cache = _settle_cache(asked, config, dtype, device)
    cache_dtype = resolve_cache_dtype(cache, config, dtype)
    # A backend of its own, as those of a GPU keep something of their model.
    needs = _attention_needs(asked, config, dtype, cache if cache_dtype != dtype else "")
    placement = Placement(device, choose_backend(asked.attention_backend, device, needs))
    return AskedModel(
        config, dtype, quantization, cache_dtype, placement, TEXT, has_own_quantization=bool(own)
    )


def _check_speculation(
    asked: WorkerConfig, config: ModelConfig, placement: Placement[Device], pooling: Pooling | None
) -> None:
    """Refuse drafts where there is no text, or a token may have other bits beside them than alone."""
    if asked.speculation is None:
        return
    if pooling is not None:
        raise ConfigError(f"{config.path} makes no text to draft: add --speculate none")
    device, backend, _mesh = placement
    if device.name == "cuda" and not asked.batch_invariant:
        raise ConfigError(
            "--speculate on a GPU needs --batch-invariant, so that drafts change no token: without it one "
            "may depend on how many are computed beside it"
        )
    if not isinstance(backend, CpuAttention | CudaAttention) or config.family == "transformers":
        raise ConfigError("--speculate works with the server's own kernels and models only")


def _settle_cache(asked: WorkerConfig, config: ModelConfig, dtype: torch.dtype, device: Device) -> str:
    why_not = ""
    if asked.attention_backend not in ("auto", device.name):
        why_not = f"--attention-backend {asked.attention_backend} reads no codes"
    elif config.latent is not None and device.name != "cpu":
        why_not = "codes of latents are read on CPUs only"
    scales = partial(read_cache_scales, Path(config.path))
    return settle_cache(asked.kv_cache_dtype, config, dtype, scales, why_not)


def _attention_needs(
    asked: WorkerConfig, config: ModelConfig, dtype: torch.dtype, codes: str
) -> AttentionNeeds:
    heads = (config.head_dim, config.num_heads, config.num_kv_heads)
    traits = config.traits.attention
    return AttentionNeeds(
        dtype,
        asked.block_size,
        *heads,
        softcap=traits.score_cap > 0.0,
        sinks=traits.has_sinks,
        batch_invariant=asked.batch_invariant,
        latent=config.latent is not None,
        whole=config.encoder is not None,
        codes=codes,
    )


def _read_config(asked: WorkerConfig) -> tuple[ModelConfig, Pooling | None]:
    """Return the config with the context that is served, and how the model makes vectors, if it does.

    Raises:
        ModelLoadError: a file of the checkpoint, or the task that it is asked to do.
    """
    config = read_model_config(asked.model, asked.model_impl).limited_to(asked.max_model_len)
    if config.classifier is not None:
        return config, pooling_of_classifier(config.path, asked.task, config.classifier.head.pooling)
    judge = read_judge(config, asked.task, is_bare=is_bare(config.architecture))
    if judge is not None:
        return _limited(config, judge.max_tokens), Pooling(normalizes=False, judge=judge)
    pooling = read_pooling(
        Path(config.path),
        asked.task,
        is_bare=is_bare(config.architecture),
        is_encoder=config.encoder is not None,
    )
    return _limited(config, pooling.max_tokens if pooling is not None else 0), pooling


def _limited(config: ModelConfig, max_tokens: int) -> ModelConfig:
    return config.limited_to(min(config.max_model_len, max_tokens)) if max_tokens else config


def _uses(config: WorkerConfig, pooling: Pooling | None) -> ModelUses:
    return ModelUses(
        has_head=pooling is None or pooling.judge is not None,
        makes_text=pooling is None,
        num_adapters=config.num_adapter_slots,
        max_rank=config.max_lora_rank,
    )
