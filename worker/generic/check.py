"""Does a model on our attention compute what the transformers library computes?

A layer may mix tokens in ways that no trial shows, such as a convolution over a sequence. So, once the
weights are there, two short prompts are computed in one step, and each by the library alone.
"""

from __future__ import annotations

import torch

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.worker.attention.base import AttentionBackend
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.generic.model import TransformersModel
from splitserve.worker.generic.skeleton import refusal
from splitserve.worker.kv_cache.layout import BlockShape, KVCache, layer_caches

_LENGTHS = (11, 7)
_BLOCK_SIZE = 16
# Of the norm of all hidden states: many times what two orders of adding differ by, and a fraction of what a
# missing part of the model does.
_TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}


@torch.inference_mode()
def check_agreement(model: TransformersModel, config: ModelConfig, backend: AttentionBackend) -> None:
    """Compare hidden states of two prompts, and of a token behind the first one that is alone in a step.

    Raises:
        ModelLoadError: they differ.
    """
    if config.max_model_len < 2:
        return
    lengths = [min(length, config.max_model_len, _BLOCK_SIZE) for length in _LENGTHS]
    prompts = [_prompt(length, first, config.vocab_size) for first, length in enumerate(lengths)]
    theirs = torch.cat([_compute_by_library(model, prompt) for prompt in prompts]).float()
    shape = BlockShape(
        model.num_layers, model.num_kv_heads, _BLOCK_SIZE, model.head_dim, model.workspace.dtype
    )
    caches = layer_caches(backend.allocate(shape, len(prompts)))
    last = lengths[0] - 1
    spans = [range(last), range(lengths[1])]
    first_step = _compute(model, prompts, spans, caches, backend)
    second_step = _compute(model, prompts[:1], [range(last, last + 1)], caches, backend)
    ours = torch.cat([first_step[:last], second_step, first_step[last:]]).float()
    error = (ours - theirs).norm() / theirs.norm()
    # Hidden states of a damaged checkpoint may be NaN, which the first step tells.
    if theirs.isfinite().all() and not error <= _TOLERANCES[model.workspace.dtype]:
        raise refusal(config, f"its hidden states differ from those of the library by {error:.1%}")


def _prompt(length: int, first: int, vocab_size: int) -> torch.Tensor:
    return (torch.arange(first, first + length) * 7919 + 13) % vocab_size


def _compute(
    model: TransformersModel,
    prompts: list[torch.Tensor],
    spans: list[range],
    caches: list[KVCache],
    backend: AttentionBackend,
) -> torch.Tensor:
    """Compute a span of each prompt, which has the block of its number, in one step; return [T, H]."""
    positions = torch.cat([torch.arange(span.start, span.stop) for span in spans])
    lengths = torch.tensor([len(span) for span in spans])
    rows = torch.repeat_interleave(torch.arange(len(spans)), lengths)
    token_ids = [prompt[span.start : span.stop] for prompt, span in zip(prompts, spans, strict=True)]
    layout = (
        positions,
        rows * _BLOCK_SIZE + positions,
        torch.arange(len(spans)).unsqueeze(1),
        torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]),
        torch.tensor([span.stop for span in spans]),
    )
    meta = AttentionMetadata(*(part.int() for part in layout))
    backend.begin_step(meta)
    return model.states(torch.cat(token_ids).int(), meta, caches).clone()


def _compute_by_library(model: TransformersModel, prompt: torch.Tensor) -> torch.Tensor:
    configs = [module.config for module in model.base.modules() if hasattr(module, "config")]
    names = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation = "eager"
        positions = torch.arange(len(prompt)).unsqueeze(0)
        return model.run_base(prompt.unsqueeze(0), positions)
    finally:
        for config, name in zip(configs, names, strict=True):
            config._attn_implementation = name
