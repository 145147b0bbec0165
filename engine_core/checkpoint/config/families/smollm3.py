"""SmolLM3: Llama's layers, every fourth of them without rotary embedding."""

from __future__ import annotations

from pathlib import Path

import msgspec

from splitserve.engine_core.checkpoint.config.common_fields import MAX_LAYERS, MAX_LEN
from splitserve.engine_core.checkpoint.config.decoder_config import Defaults, read_decoder
from splitserve.engine_core.checkpoint.config.families.llama import llama_traits
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.layer_windows import read_windows
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig


def read_smollm3(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a SmolLM3ForCausalLM.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    defaults = Defaults(max_positions=32768, windows=_windows, num_kv_heads=4, theta=2e6, tied=True)
    model = read_decoder(path, architecture, config, defaults, llama_traits(config))
    turned = _turned_layers(config, model.num_layers)
    ropes = tuple(rope if turns else None for rope, turns in zip(model.ropes, turned, strict=True))
    return msgspec.structs.replace(model, ropes=ropes)


def _turned_layers(config: Fields, num_layers: int) -> tuple[bool, ...]:
    """Return whether each layer has a rotary embedding: in the field it has 1, despite the name."""
    interval = config.integer("no_rope_layer_interval", 1, MAX_LAYERS, 4)
    flags = config.integers("no_rope_layers", 0, 1)
    if flags is None:
        return tuple((i + 1) % interval != 0 for i in range(num_layers))
    if len(flags) != num_layers:
        raise config.error(
            "no_rope_layers", f"must have 0 or 1 for each of {num_layers} layers, got {len(flags)}"
        )
    return tuple(map(bool, flags))


def _windows(config: Fields, num_layers: int) -> tuple[int, ...]:
    window = 0
    if config.boolean("use_sliding_window", False) and config.has("sliding_window"):
        window = config.integer("sliding_window", 1, MAX_LEN)
    turned = _turned_layers(config, num_layers)
    return read_windows(config, window, lambda i: bool(window) and not turned[i], num_layers)
