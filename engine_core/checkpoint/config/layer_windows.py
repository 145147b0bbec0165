"""Which layers have a sliding window, according to each architecture's config.json."""

from __future__ import annotations

from collections.abc import Callable

from splitserve.engine_core.checkpoint.config.common_fields import MAX_LAYERS, MAX_LEN
from splitserve.engine_core.checkpoint.config.fields import Fields

FULL, SLIDING = "full_attention", "sliding_attention"
# An older name for the same.
_ALIASES = {"attention": FULL}


def no_windows(config: Fields, num_layers: int) -> tuple[int, ...]:
    """Return 0 for each layer: this architecture has no windows, whatever `sliding_window` says.

    Raises:
        ModelLoadError: `layer_types` asks for one anyway.
    """
    return _windows(config, 0, read_layer_kinds(config, num_layers) or (FULL,) * num_layers)


def window_of_all(config: Fields, num_layers: int) -> tuple[int, ...]:
    """Return `sliding_window` for every layer, 0 if it is absent; `layer_types` does not count.

    Raises:
        ModelLoadError: names the field.
    """
    window = config.integer("sliding_window", 1, MAX_LEN) if config.has("sliding_window") else 0
    return (window,) * num_layers


def mistral_windows(config: Fields, num_layers: int) -> tuple[int, ...]:
    """Return Mistral's windows: for the layers that `layer_types` names, or else for every layer.

    Raises:
        ModelLoadError: names the field.
    """
    # Absent means the 4096 of the first release; null, as in later releases, means full attention.
    window = 0 if config.is_null("sliding_window") else config.integer("sliding_window", 1, MAX_LEN, 4096)
    kinds = read_layer_kinds(config, num_layers)
    return (window,) * num_layers if kinds is None else _windows(config, window, kinds)


def qwen_windows(config: Fields, num_layers: int) -> tuple[int, ...]:
    """Return Qwen's windows: for the layers in `layer_types`, or else for those from `max_window_layers` on.

    Raises:
        ModelLoadError: names the field.
    """
    window = 0
    if config.boolean("use_sliding_window", False) and not config.is_null("sliding_window"):
        window = config.integer("sliding_window", 1, MAX_LEN, 4096)
    first = config.integer("max_window_layers", 0, MAX_LAYERS, 28)
    return read_windows(config, window, lambda i: bool(window) and i >= first, num_layers)


def read_windows(
    config: Fields, window: int, slides: Callable[[int], bool], num_layers: int
) -> tuple[int, ...]:
    """Return the windows of a model whose layers have `window` or none.

    Args:
        config: may have `layer_types`, which takes precedence.
        window: in tokens; 0 if the model has none.
        slides: whether a layer has a window if there are no `layer_types`.
        num_layers: of the model.

    Raises:
        ModelLoadError: `layer_types` is not for this model.
    """
    kinds = read_layer_kinds(config, num_layers)
    if kinds is None:
        kinds = tuple(SLIDING if slides(i) else FULL for i in range(num_layers))
    return _windows(config, window, kinds)


def read_layer_kinds(config: Fields, num_layers: int) -> tuple[str, ...] | None:
    """Return `layer_types`, FULL or SLIDING for each layer, None if absent.

    Raises:
        ModelLoadError: it is something else.
    """
    if not config.has("layer_types"):
        return None
    kinds = tuple(_ALIASES.get(kind, kind) for kind in config.texts("layer_types"))
    if len(kinds) != num_layers or not set(kinds) <= {FULL, SLIDING}:
        raise config.error(
            "layer_types",
            f"must name {FULL} or {SLIDING} for each of {num_layers} layers, got {list(kinds)!r}",
        )
    return kinds


def _windows(config: Fields, window: int, kinds: tuple[str, ...]) -> tuple[int, ...]:
    if SLIDING in kinds and not window:
        raise config.error("layer_types", f"names {SLIDING}, but this model has no sliding window")
    return tuple(window if kind == SLIDING else 0 for kind in kinds)
