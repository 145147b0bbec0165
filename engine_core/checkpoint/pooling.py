"""Does a checkpoint make vectors of prompts instead of text, and how?

Read from what the sentence-transformers library keeps beside a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from splitserve.engine_core.checkpoint.config.common_fields import MAX_WIDTH
from splitserve.engine_core.checkpoint.config.field_files import read_fields
from splitserve.engine_core.checkpoint.judging import Judge
from splitserve.engine_core.checkpoint.modules import MODULES, read_max_tokens, read_modules
from splitserve.engine_core.errors import ModelLoadError

CONFIG = "config.json"
_MODE = "pooling_mode_"
_MODES = (
    "cls_token",
    "max_tokens",
    "mean_tokens",
    "mean_sqrt_len_tokens",
    "weightedmean_tokens",
    "lasttoken",
)

PoolingMode = Literal["lasttoken", "cls", "mean", "max", "weightedmean", "mean_sqrt_len"]
# By both of the names that a mode has.
_SUPPORTED: dict[str, PoolingMode] = {
    "lasttoken": "lasttoken",
    "cls": "cls",
    "cls_token": "cls",
    "mean": "mean",
    "mean_tokens": "mean",
    "max": "max",
    "max_tokens": "max",
    "weightedmean": "weightedmean",
    "weightedmean_tokens": "weightedmean",
    "mean_sqrt_len": "mean_sqrt_len",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
}
_DENSE_ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": True,
    "torch.nn.modules.linear.Identity": False,
}


class Dense(NamedTuple):
    """A layer that a pooled vector goes through.

    Attributes:
        folder: of its config and weights.
        in_features, out_features: its sizes.
        has_bias: whether it has one.
        is_tanh: its activation is tanh; otherwise it has none.
    """

    folder: Path
    in_features: int
    out_features: int
    has_bias: bool
    is_tanh: bool


class Pooling(NamedTuple):
    """How the vector of a prompt is made of the hidden states of its tokens, after the final norm.

    Attributes:
        normalizes: vectors are meant to be brought to length 1.
        max_tokens: longest prompt; 0 for the model's own limit.
        mode: the last token's, the first one's, the mean or the largest of each element; the mean with
            weights 1, 2, 3 and so on, or the sum by the root of the number of tokens.
        dense: layers that it goes through then.
        judge: makes a score of it by the output head instead; None if nothing does.
    """

    normalizes: bool = True
    max_tokens: int = 0
    mode: PoolingMode = "lasttoken"
    dense: tuple[Dense, ...] = ()
    judge: Judge | None = None

    @property
    def needs_all(self) -> bool:
        """Whether the states of all tokens are needed, which a cached prefix has not."""
        return self.mode != "lasttoken"


def pooling_of_classifier(path: str, task: str, mode: PoolingMode) -> Pooling:
    """Return how the state that a head for labels reads is made.

    Args:
        path: of the checkpoint.
        task: as for read_pooling; such a model can do nothing else than "auto" takes it for.
        mode: of the head.

    Raises:
        ModelLoadError: another task was asked for.
    """
    if task != "auto":
        raise ModelLoadError(
            f"{Path(path) / CONFIG} names a model with a head for labels: --task must be auto, got {task}"
        )
    return Pooling(normalizes=False, mode=mode)


def read_pooling(
    directory: Path, task: str, *, is_bare: bool = False, is_encoder: bool = False
) -> Pooling | None:
    """Return how a checkpoint makes vectors; None if it generates text.

    Args:
        directory: of the checkpoint.
        task: "auto" goes by modules.json and by is_bare, "embed" makes vectors without either, too,
            "generate" never does.
        is_bare: the model has no output head, so that it can do nothing else.
        is_encoder: tokens see those behind them. Without modules.json the mean is taken then, as the
            sentence-transformers library does, otherwise the last token's state.

    Raises:
        ModelLoadError: names the file and what it asks for that is not supported.
    """
    if task == "generate":
        if is_bare:
            raise ModelLoadError(
                f"{directory / CONFIG} names a model without an output head, which generates no text: "
                "--task must be embed or auto"
            )
        return None
    modules = read_modules(directory)
    if modules is None:
        default = Pooling(mode="mean" if is_encoder else "lasttoken")
        return default if task == "embed" or is_bare else None
    names = [module.kind for module in modules]
    num_dense = names[2:].count("Dense")
    if names != ["Transformer", "Pooling"] + ["Dense"] * num_dense + ["Normalize"] * (
        "Normalize" in names[2:]
    ):
        shown = ", ".join(names)[:200] or "none"
        raise ModelLoadError(
            f"{directory / MODULES}: modules must be Transformer, Pooling, perhaps Dense and perhaps "
            f"Normalize, got {shown}"
        )
    mode = _read_mode(modules[1].folder / "config.json", is_encoder=is_encoder)
    dense = tuple(_read_dense(module.folder) for module in modules[2 : 2 + num_dense])
    return Pooling("Normalize" in names, read_max_tokens(directory), mode, dense)


def _read_mode(path: Path, *, is_encoder: bool) -> PoolingMode:
    config = read_fields(path)
    if config.has("pooling_mode"):
        modes = [config.text("pooling_mode", default="")]
    else:
        modes = [name.removeprefix(_MODE) for name in config.names_of_true() if name.startswith(_MODE)]
        for name in _MODES:
            config.boolean(f"{_MODE}{name}", False)
    supported = [mode for mode in _SUPPORTED if is_encoder or _SUPPORTED[mode] != "cls"]
    if len(modes) != 1 or modes[0] not in supported:
        wanted = ", ".join(dict.fromkeys(_SUPPORTED[mode] for mode in supported))
        got = ", ".join(modes)[:200] or "none"
        of_what = "an encoder" if is_encoder else "a decoder, whose first token sees no other,"
        raise ModelLoadError(f"{path}: the pooling mode of {of_what} must be one of {wanted}, got {got}")
    if not config.boolean("include_prompt", True):
        raise config.error("include_prompt", "must be true or absent")
    return _SUPPORTED[modes[0]]


def _read_dense(folder: Path) -> Dense:
    config = read_fields(folder / "config.json")
    activation = config.text("activation_function", "torch.nn.modules.activation.Tanh")
    if activation not in _DENSE_ACTIVATIONS:
        wanted = " or ".join(_DENSE_ACTIVATIONS)
        raise config.error("activation_function", f"must be {wanted}, got {activation[:200]!r}")
    return Dense(
        folder=folder,
        in_features=config.integer("in_features", 1, MAX_WIDTH),
        out_features=config.integer("out_features", 1, MAX_WIDTH),
        has_bias=config.boolean("bias", True),
        is_tanh=_DENSE_ACTIVATIONS[activation],
    )
