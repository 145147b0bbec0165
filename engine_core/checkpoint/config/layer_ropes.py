"""How rotary parameters are read that differ between layers with and without a window."""

from __future__ import annotations

import msgspec

from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.layer_windows import FULL, SLIDING
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.rope_config import RopeConfig, RopeShape, read_rope


def read_full_rope(config: Fields, shape: RopeShape) -> RopeConfig:
    """Return the rotary embedding of layers without a window.

    Its parameters are those of `rope_parameters` for these layers, changed by those of `rope_scaling`.

    Raises:
        ModelLoadError: names the field that is out of range or not supported.
    """
    rope = _parameters(config, FULL)
    scaling = config.nested("rope_scaling")
    if scaling is not None:
        if scaling.has("type") and not scaling.has("rope_type"):
            raise scaling.error("type", "must be called rope_type in this architecture")
        rope = rope.changed_by(scaling)
    theta = config.number("rope_theta", 1.0, 1e15, shape.theta)
    return read_rope(rope, shape._replace(theta=theta))


def read_rope_of_kind(config: Fields, kind: str, shape: RopeShape) -> RopeConfig:
    """Return the rotary embedding of one kind of layer, of which only `rope_parameters` tells.

    Raises:
        ModelLoadError: names the field that is out of range or not supported.
    """
    return read_rope(_parameters(config, kind), shape)


def with_local_ropes(config: Fields, model: ModelConfig, theta: float, name: str = "") -> ModelConfig:
    """Return a model whose layers with a window have rotary embeddings of their own.

    Args:
        config: of the checkpoint; only `rope_parameters` for these layers counts, and `name`.
        model: with the rotary embedding of the other layers in all.
        theta: default of their base.
        name: field of their base; "" for none.

    Raises:
        ModelLoadError: names the field that is out of range or not supported.
    """
    if name:
        theta = config.number(name, 1.0, 1e15, theta)
    shape = RopeShape(model.head_dim, model.max_position_embeddings, theta)
    local = read_rope(_parameters(config, SLIDING), shape)
    layers = zip(model.ropes, model.sliding_windows, strict=True)
    ropes = tuple(local if window else rope for rope, window in layers)
    return msgspec.structs.replace(model, ropes=ropes)


def _parameters(config: Fields, kind: str) -> Fields:
    parameters = config.nested("rope_parameters")
    empty = Fields({}, config.where)
    if parameters is None:
        return empty
    if not parameters.names <= {FULL, SLIDING}:
        raise parameters.error(
            "rope_type", f"must be given for each kind of layer, in objects called {FULL} and {SLIDING}"
        )
    return parameters.nested(kind) or empty
