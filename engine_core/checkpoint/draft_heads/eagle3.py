"""Which EAGLE-3 head does a folder hold, and for which model? config.json and the tensors' names say it."""

from __future__ import annotations

import sys
from array import array
from pathlib import Path

import msgspec

from splitserve.engine_core.checkpoint.config.common_fields import MAX_VOCAB, MAX_WIDTH, open_config
from splitserve.engine_core.checkpoint.config.families.llama import read_llama
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.model_config import DraftHead, ModelConfig
from splitserve.engine_core.checkpoint.weight_files import Checkpoint, CheckpointTensor
from splitserve.engine_core.errors import ConfigError, ModelLoadError

# Of SafeAILab's code and SpecForge, of vLLM, and of its library of speculators.
ARCHITECTURES = (
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "Eagle3Speculator",
    "Eagle3DraftModel",
)
# How published files call the decoder layer.
_LAYERS = ("midlayer", "layers.0")
_MAX_READ_LAYERS = 16
# The vocabulary of a head: what is added to each of its ids to have the model's.
_TOKEN_OFFSETS = "d2t"


def read_eagle3(path: str, model: ModelConfig) -> ModelConfig:
    """Return the config of an EAGLE-3 head, which reads as much of a row as the model.

    Args:
        path: its directory.
        model: for which it drafts, limited to the context that is served.

    Raises:
        ConfigError: it cannot draft for this model; the message names both and says why.
        ModelLoadError: its files cannot be read, or are no EAGLE-3 head.
    """
    folder = Path(path)
    config = open_config(folder)
    _check_architecture(config)
    _check_model(path, model)
    # Speculators describe the layer in an object of its own.
    layer = config.nested("transformer_layer_config") or config
    head = read_llama(folder, ARCHITECTURES[0], layer)
    if head.num_layers != 1:
        raise layer.error("num_hidden_layers", f"must be 1 for an EAGLE-3 head, got {head.num_layers}")
    if head.vocab_size != model.vocab_size:
        raise ConfigError(
            f"the EAGLE-3 head {path} has another vocabulary than {model.path}: "
            f"{head.vocab_size} tokens instead of {model.vocab_size}"
        )
    read_size = config.integer("target_hidden_size", 1, MAX_WIDTH, head.hidden_size)
    if read_size != model.hidden_size:
        raise ConfigError(
            f"the EAGLE-3 head {path} reads hidden states of another size than {model.path} has: "
            f"{read_size} instead of {model.hidden_size}"
        )
    with Checkpoint.open(folder) as checkpoint:
        drafting = _read_head(config, head, model, checkpoint)
    return msgspec.structs.replace(
        head,
        family="eagle3",
        tie_word_embeddings=False,
        # Only the table of rotations depends on it.
        max_model_len=model.max_model_len,
        draft_head=drafting,
    )


def _check_architecture(config: Fields) -> None:
    names = config.texts("architectures")
    if not any(name in ARCHITECTURES for name in names):
        asked = ", ".join(map(repr, names[:4])) or "none"
        raise config.error(
            "architectures",
            f"names {asked}; a head for the method eagle3 is one of {', '.join(ARCHITECTURES)}",
        )


def _check_model(path: str, model: ModelConfig) -> None:
    if model.family != "decoder":
        raise ConfigError(
            f"EAGLE-3 heads such as {path} draft for decoders with rotary positions, and {model.path} is a "
            f"{model.architecture}"
        )
    if any(model.sliding_windows):
        raise ConfigError(
            f"{path} cannot draft for {model.path}: its layers have a sliding window, whose blocks are not "
            "kept for a head"
        )


def _read_head(config: Fields, head: ModelConfig, model: ModelConfig, checkpoint: Checkpoint) -> DraftHead:
    name = next((name for name in _LAYERS if checkpoint.find(f"{name}.hidden_norm.weight")), _LAYERS[0])
    has_own_embedding = checkpoint.find("embed_tokens.weight") is not None
    if not has_own_embedding and head.hidden_size != model.hidden_size:
        raise ModelLoadError(
            f"{checkpoint.file_names}: missing tensor 'embed_tokens.weight', and that of {model.path} has "
            f"another size: {model.hidden_size} instead of {head.hidden_size}"
        )
    token_ids = _read_vocabulary(config, checkpoint, head.vocab_size)
    has_own_head = checkpoint.find("lm_head.weight") is not None
    if not has_own_head and (token_ids or head.hidden_size != model.hidden_size):
        raise ModelLoadError(f"{checkpoint.file_names}: missing tensor 'lm_head.weight'")
    return DraftHead(
        layer=name,
        read_layers=_read_layers(config, model),
        read_size=model.hidden_size,
        token_ids=token_ids,
        has_own_embedding=has_own_embedding,
        has_own_head=has_own_head,
        has_fc_bias=checkpoint.find("fc.bias") is not None,
        goes_on_with_norm=config.boolean("norm_before_residual", False),
    )


def _read_layers(config: Fields, model: ModelConfig) -> tuple[int, ...]:
    """Return in front of which of the model's layers states are read; its number of layers: at the end."""
    count, name = model.num_layers, "eagle_aux_hidden_state_layer_ids"
    nested = config.nested("eagle_config")
    if config.has(name):
        layers = config.integers(name, 1, count)
    elif nested is not None and nested.has(name):
        # Here layers are named whose outputs are read.
        layers = nested.integers(name, 0, count - 1)
        layers = None if layers is None else tuple(layer + 1 for layer in layers)
    else:
        layers = (min(2, count), max(1, count // 2), max(1, count - 3))
    if not layers or len(layers) > _MAX_READ_LAYERS:
        raise config.error(name, f"must name 1 to {_MAX_READ_LAYERS} layers")
    return layers


def _read_vocabulary(config: Fields, checkpoint: Checkpoint, vocab_size: int) -> tuple[int, ...]:
    """Return the model's ids of the head's own tokens, () if it has all of them in their order."""
    offsets = checkpoint.find(_TOKEN_OFFSETS)
    num_tokens = config.integer("draft_vocab_size", 1, MAX_VOCAB, vocab_size)
    if offsets is None:
        if num_tokens != vocab_size:
            raise ModelLoadError(
                f"{checkpoint.file_names}: missing tensor {_TOKEN_OFFSETS!r}, which says which "
                f"{num_tokens} of the {vocab_size} tokens the head knows"
            )
        return ()
    ids = tuple(i + offset for i, offset in enumerate(_integers(offsets, num_tokens)))
    if min(ids) < 0 or max(ids) >= vocab_size or len(set(ids)) < len(ids):
        raise ModelLoadError(
            f"{offsets.file.path}: tensor {_TOKEN_OFFSETS!r} must give each of the head's {num_tokens} "
            f"tokens one of its own of the model's {vocab_size}"
        )
    return ids


def _integers(tensor: CheckpointTensor, count: int) -> array[int]:
    entry = tensor.entry
    if entry.dtype != "I64" or entry.shape != (count,):
        raise ModelLoadError(
            f"{tensor.file.path}: tensor {tensor.name!r} must be I64 of shape {[count]}, got {entry.dtype} "
            f"of shape {list(entry.shape)}"
        )
    values = array("q", bytes(entry.num_bytes))
    tensor.file.read_into(entry.begin, memoryview(values).cast("B"))
    if sys.byteorder == "big":
        values.byteswap()
    return values
