"""A model of the transformers library without its weights, or why it cannot be served."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, __version__

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.errors import ModelLoadError


def refusal(config: ModelConfig, reason: object) -> ModelLoadError:
    """Return (not raise) the error for a model that this backend cannot run.

    Args:
        config: of the model.
        reason: completes "cannot be served by the transformers backend: ".
    """
    text = " ".join(str(reason).split())
    return ModelLoadError(
        f"{config.path}: {config.architecture} cannot be served by the transformers backend: {text:.500}"
    )


def make_skeleton(config: ModelConfig, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    """Build the modules on torch's meta device, where nothing takes memory. No code of the checkpoint is run.

    Args:
        config: of the checkpoint.
        dtype: of parameters and activations.
        attention: name that the attention is registered under in the library.

    Raises:
        ModelLoadError: the library does not know the architecture, or it is of a kind that has no paged KV
            cache.
    """
    try:
        # Errors of any kind: the files are somebody else's, and each architecture checks them in its own way.
        stated = AutoConfig.from_pretrained(config.path, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        if config.has_custom_code:
            raise refusal(
                config,
                f"transformers {__version__} knows its model_type only by Python code of the checkpoint, "
                "which is never executed",
            ) from error
        raise refusal(config, f"transformers {__version__} cannot read its config.json ({error})") from error
    if getattr(stated, "is_encoder_decoder", False):
        raise refusal(config, "it has an encoder and a decoder")
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                stated, dtype=dtype, attn_implementation=attention, trust_remote_code=False
            )
    except Exception as error:
        raise refusal(config, f"transformers {__version__} cannot build it ({error})") from error
    _check_kind(config, model)
    return model.eval()


def _check_kind(config: ModelConfig, model: PreTrainedModel) -> None:
    built = type(model).__name__
    if built != config.architecture:
        raise refusal(config, f"model_type {model.config.model_type!r} makes a {built} of it")
    if getattr(model, "_is_stateful", False):
        raise refusal(config, "it keeps a state per sequence, which a paged KV cache does not hold")
    vocab_size = model.get_input_embeddings().weight.shape[0]
    if vocab_size != config.vocab_size:
        raise refusal(config, f"its embedding has {vocab_size} rows, not vocab_size {config.vocab_size}")
    for name, parameter in model.named_parameters():
        if parameter.ndim not in (1, 2):
            raise refusal(
                config, f"parameter {name!r} has shape {list(parameter.shape)}, as of experts or convolutions"
            )
    kept = [name for name, _ in model.named_buffers() if name in model.state_dict()]
    if kept:
        raise refusal(config, f"its checkpoint holds tables that are computed elsewhere: {kept[:4]}")


def compute_buffers(model: PreTrainedModel) -> None:
    """Compute the tables that modules keep beside their parameters, such as rotary frequencies."""
    for module in model.modules():
        names = [name for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta]
        for name in names:
            module._buffers[name] = torch.empty_like(module._buffers[name], device="cpu")
        if names:
            model._init_weights(module)
