"""The attention that modules of the transformers library call, and what their layers ask of it.

Modules call one function, registered under a name, with queries, keys and values of all tokens of a step. In
a trial on the meta device it notes what each call asks for; in a step it writes and reads the paged KV cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from splitserve.worker.attention.base import AttentionBackend, Scores
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.generic.tracing import Launcher
from splitserve.worker.kv_cache.layout import KVCache

# What modules hand down to the attention of any kind, and what has no meaning for this one.
_IGNORED = {
    "cache",
    "cache_position",
    "layer_idx",
    "past_key_values",
    "position_embeddings",
    "position_ids",
    "return_dict",
    "use_cache",
}
# Rows of a mask that show whether it is a window, in windows: those around a border of chunks, too.
_PROBED_WINDOWS = (0.5, 1.0, 1.5, 2.0, 3.25)


class UnsupportedAttentionError(Exception):
    """A layer asks for what the paged attention does not compute; the message says what."""


class LayerAttention(NamedTuple):
    """What one attention layer computes.

    Attributes:
        num_heads, num_kv_heads, head_dim: Hq, Hkv, D.
        scores: how scores come from queries and keys.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scores: Scores


Attend = Callable[..., "tuple[torch.Tensor, None]"]


class AttentionHook:
    """The function that modules call, and the one behind it.

    Args:
        name: that it is registered under; one per model.
        max_model_len: longest sequence served, in tokens.

    Attributes:
        attend: computes attention, with the arguments of a function of transformers' AttentionInterface.
    """

    def __init__(self, name: str, max_model_len: int) -> None:
        self.attend: Attend = self._refuse
        self._max_len = max_model_len
        AttentionInterface.register(name, lambda *args, **kwargs: self.attend(*args, **kwargs))
        AttentionMaskInterface.register(name, self._mask)
        self._makes_masks = False

    def trial(self) -> list[LayerAttention]:
        """Note what each call asks for; the result is filled while the model runs on the meta device."""
        layers: list[LayerAttention] = []

        def note(
            module: torch.nn.Module,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            attention_mask: torch.Tensor | None,
            **asked: object,
        ) -> tuple[torch.Tensor, None]:
            layers.append(_layer(module, (query, key, value), attention_mask, asked))
            return query.new_empty(query.shape).transpose(1, 2), None

        self.attend = note
        self._makes_masks = True
        return layers

    def serve(self, steps: StepAttention) -> None:
        """Compute from now on, over the paged KV cache."""
        self.attend = steps
        self._makes_masks = False

    def _mask(self, **asked: object) -> torch.Tensor | None:
        """Return a tensor that stands for a mask and knows its window; None in a step, which needs none."""
        if not self._makes_masks:
            return None
        shape = (asked["batch_size"], 1, asked["q_length"], asked["kv_length"])
        mask = torch.empty(shape, dtype=torch.bool, device="meta")  # type: ignore[arg-type]
        mask.window = window_of(asked["mask_function"], self._max_len)  # type: ignore[arg-type, attr-defined]
        return mask

    @staticmethod
    def _refuse(*args: object, **kwargs: object) -> tuple[torch.Tensor, None]:
        raise AssertionError("attention was asked for before a trial")


class StepAttention:
    """Attention of the tokens of a step, in the order in which layers ask for it.

    Args:
        backend: writes and reads the KV cache.
        layers: what each call computes.
        launch: runs kernels.
        dtype: of activations.
    """

    def __init__(
        self, backend: AttentionBackend, layers: list[LayerAttention], launch: Launcher, dtype: torch.dtype
    ) -> None:
        self._backend = backend
        self._launch = launch
        self._dtype = dtype
        self._scores = [layer.scores for layer in layers]
        self._groups: tuple[AttentionMetadata, ...] = ()
        self._calls: Iterator[tuple[KVCache, Scores]] = iter(())
        self._num_left = 0
        self._wanted: torch.Tensor | None = None

    def begin(
        self, meta: AttentionMetadata, kv_caches: Iterable[KVCache], wanted: torch.Tensor | None = None
    ) -> None:
        """Start a step, of which some tokens are wanted behind the last layer's attention; None for all."""
        self._groups = meta.of_groups()
        self._calls = zip(kv_caches, self._scores, strict=True)
        self._num_left = len(self._scores)
        self._wanted = wanted
        self._launch.narrow(None, 0)

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *args: object,
        **asked: object,
    ) -> tuple[torch.Tensor, None]:
        """Attend with query [1, Hq, T, D], key and value [1, Hkv, T, D]; return [1, T, Hq, D]."""
        attended = self._attend(query, key, value)
        self._num_left -= 1
        if not self._num_left:
            self._launch.narrow(self._wanted, query.shape[2])
        return attended, None

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        kv_cache, scores = next(self._calls)
        meta = self._groups[kv_cache.group]
        # Some modules rotate in float32.
        q, k, v = (part[0].transpose(0, 1).to(self._dtype) for part in (query, key, value))
        # Queries are not changed without a rotation.
        self._launch(lambda q, k, v: self._backend.write(q, k, v, kv_cache, meta, None), q, k, v)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        self._launch(lambda out, q: self._backend.attend(out, q, kv_cache, meta, scores), out, q)
        return out.unsqueeze(0).to(query.dtype)


def window_of(may_see: Callable[..., torch.Tensor], max_len: int) -> int:
    """Return the window of a causal mask in tokens, 0 for none.

    Args:
        may_see: function of batch, head, query position and key position, as transformers' masks have it.
        max_len: positions below it count.

    Raises:
        UnsupportedAttentionError: what a token sees is neither all before it nor a window.
    """
    last = max_len - 1
    seen = _seen(may_see, last, max_len)
    window = int(seen.sum())
    probed = {0, 1, last, *(min(last, int(window * share)) for share in _PROBED_WINDOWS)}
    for position in {p for near in probed for p in (near - 1, near, near + 1) if 0 <= p <= last}:
        positions = torch.arange(max_len)
        expected = (positions <= position) & (positions > position - window)
        if not torch.equal(_seen(may_see, position, max_len), expected):
            raise UnsupportedAttentionError("its mask is neither causal nor a sliding window")
    return 0 if window == max_len else window


def _seen(may_see: Callable[..., torch.Tensor], position: int, max_len: int) -> torch.Tensor:
    """Return which positions a token sees, bool [max_len]."""
    zero = torch.zeros((), dtype=torch.long)
    seen = may_see(zero, zero, torch.tensor(position), torch.arange(max_len))
    return torch.as_tensor(seen, dtype=torch.bool).expand(max_len)


def _counts(name: str, given: object) -> bool:
    return given is not None and name not in _IGNORED and not name.startswith("output_")


def _layer(
    module: torch.nn.Module,
    projected: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    mask: torch.Tensor | None,
    asked: dict[str, object],
) -> LayerAttention:
    query, key, value = projected
    scale, cap = asked.pop("scaling", None), asked.pop("softcap", None)
    asked.pop("sliding_window", None)
    if asked.pop("dropout", 0.0):
        raise UnsupportedAttentionError("it drops attention weights at random")
    is_causal = asked.pop("is_causal", None)
    if is_causal is False or not getattr(module, "is_causal", True):
        raise UnsupportedAttentionError("tokens attend to later ones")
    unknown = sorted(name for name, given in asked.items() if _counts(name, given))
    if unknown:
        raise UnsupportedAttentionError(f"its attention asks for {', '.join(unknown)}")
    if mask is None or not hasattr(mask, "window"):
        raise UnsupportedAttentionError("it makes a mask of its own for the attention")
    _batch, num_heads, num_tokens, head_dim = query.shape
    if key.shape != value.shape or key.shape[2:] != (num_tokens, head_dim):
        raise UnsupportedAttentionError(
            f"queries {list(query.shape)}, keys {list(key.shape)} and values {list(value.shape)} "
            "differ in size"
        )
    scores = Scores(
        head_dim**-0.5 if scale is None else float(scale),  # type: ignore[arg-type]
        mask.window,
        float(cap or 0.0),  # type: ignore[arg-type]
    )
    return LayerAttention(num_heads, key.shape[1], head_dim, scores)
