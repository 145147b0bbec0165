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
from splitserve.worker.kv_cache.layout import BlockShape, layer_caches

_LENGTHS = (11, 7)
_BLOCK_SIZE = 16
# Of the norm of all hidden states: many times what two orders of adding differ by, and a fraction of what a
# missing part of the model does.
_TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}


@torch.inference_mode()
def check_agreement(model: TransformersModel, config: ModelConfig, backend: AttentionBackend) -> None:
    """Compare hidden states of two prompts.

    Raises:
        ModelLoadError: they differ.
    """
    lengths = [min(length, config.max_model_len, _BLOCK_SIZE) for length in _LENGTHS]
    prompts = [_prompt(length, first, config.vocab_size) for first, length in enumerate(lengths)]
    ours = _compute(model, prompts, backend)
    theirs = torch.cat([_compute_by_library(model, prompt) for prompt in prompts]).float()
    error = (ours.float() - theirs).norm() / theirs.norm()
    # Hidden states of a damaged checkpoint may be NaN, which the first step tells.
    if theirs.isfinite().all() and not error <= _TOLERANCES[model.workspace.dtype]:
        raise refusal(config, f"its hidden states differ from those of the library by {error:.1%}")


def _prompt(length: int, first: int, vocab_size: int) -> torch.Tensor:
    return (torch.arange(first, first + length) * 7919 + 13) % vocab_size


def _compute(
    model: TransformersModel, prompts: list[torch.Tensor], backend: AttentionBackend
) -> torch.Tensor:
    """Compute prompts of at most a block in one step; return hidden states [T, H]."""
    shape = BlockShape(
        model.num_layers, model.num_kv_heads, _BLOCK_SIZE, model.head_dim, model.workspace.dtype
    )
    caches = layer_caches(backend.allocate(shape, len(prompts)))
    lengths = [len(prompt) for prompt in prompts]
    positions = torch.cat([torch.arange(length) for length in lengths])
    rows = torch.repeat_interleave(torch.arange(len(prompts)), torch.tensor(lengths))
    layout = (
        positions,
        rows * _BLOCK_SIZE + positions,
        torch.arange(len(prompts)).unsqueeze(1),
        torch.tensor([0, *lengths]).cumsum(0),
        torch.tensor(lengths),
    )
    meta = AttentionMetadata(*(part.int() for part in layout))
    backend.begin_step(meta)
    return model.forward(torch.cat(prompts).int(), meta, caches).clone()


def _compute_by_library(model: TransformersModel, prompt: torch.Tensor) -> torch.Tensor:
    configs = [module.config for module in model.base.modules() if hasattr(module, "config")]
    names = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation = "eager"
        positions = torch.arange(len(prompt)).unsqueeze(0)
        made = model.base(input_ids=prompt.unsqueeze(0), position_ids=positions, use_cache=False)
    finally:
        for config, name in zip(configs, names, strict=True):
            config._attn_implementation = name
    hidden: torch.Tensor = made.last_hidden_state[0]
    return hidden
