"""What adapter_config.json says: rank and scale of each layer's delta, and what of it cannot be served."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from splitserve.engine_core.checkpoint.config.field_files import read_fields
from splitserve.engine_core.checkpoint.config.fields import Fields

CONFIG = "adapter_config.json"
_MAX_RANK = 2**16
_MAX_ALPHA = 1e6
# Names of modules, or ends of them; "^" stands for the beginning of a whole name.
_PATTERN = re.compile(r"\^?[A-Za-z0-9_.-]{1,300}\$?")

# Fields that must be null, false, empty or 0, and what they would mean.
_UNSERVED = {
    "use_dora": "DoRA rescales whole weights",
    "modules_to_save": "layers that are replaced as a whole are not served",
    "lora_bias": "biases of deltas are not served",
    "layer_replication": "the base model would have other layers",
    "trainable_token_indices": "changed embeddings are not served",
    "target_parameters": "deltas of experts' weights are not served",
    "alora_invocation_tokens": "adapters that begin within a prompt are not served",
    "use_qalora": "QALoRA groups the inputs of layers",
    "use_bdlora": "block-diagonal deltas are not served",
    "arrow_config": "routing between adapters is not served",
    "megatron_config": "only layers of transformers are served",
}
# Ways to begin the training that change the base model's own weights.
_OTHER_BASES = ("pissa", "olora", "corda", "loftq")


class AdapterConfig(NamedTuple):
    """A checked adapter_config.json.

    Attributes:
        base_model: name of the model that it was trained for, as it is given there.
        rank, alpha: of layers that no pattern names.
        divides_by_root: alpha is divided by the rank's root rather than by the rank (rsLoRA).
        ranks, alphas: by pattern, the first that fits counts.
    """

    base_model: str
    rank: int
    alpha: float
    divides_by_root: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]

    def rank_of(self, module: str) -> int:
        """Return the rank of a module's delta."""
        return next((rank for name, rank in self.ranks.items() if _fits(name, module)), self.rank)

    def scale_of(self, module: str) -> float:
        """Return what a module's delta is multiplied with."""
        alpha = next((alpha for name, alpha in self.alphas.items() if _fits(name, module)), self.alpha)
        rank = self.rank_of(module)
        return alpha / math.sqrt(rank) if self.divides_by_root else alpha / rank


def read_adapter_config(directory: Path) -> AdapterConfig:
    """Read the configuration of an adapter.

    Raises:
        ModelLoadError: it is missing or malformed, or what it asks for is not served; names the field.
    """
    fields = read_fields(directory / CONFIG)
    if fields.text("peft_type", "LORA").upper() != "LORA":
        raise fields.error("peft_type", f"must be LORA, got {fields.raw('peft_type')!r}")
    if fields.text("bias", "none") != "none":
        raise fields.error("bias", f"must be none, got {fields.raw('bias')!r}: changed biases are not served")
    for name, reason in _UNSERVED.items():
        if fields.raw(name):
            raise fields.unwanted(name, reason)
    begun = fields.raw("init_lora_weights")
    if isinstance(begun, str) and begun.lower().startswith(_OTHER_BASES):
        raise fields.error(
            "init_lora_weights",
            f"is {begun!r}, which changes the base model's own weights: convert the adapter when it is saved "
            "(path_initial_model_for_weight_conversion of the peft library)",
        )
    return AdapterConfig(
        base_model=fields.text("base_model_name_or_path", ""),
        rank=fields.integer("r", 1, _MAX_RANK, 8),
        alpha=fields.number("lora_alpha", 0, _MAX_ALPHA, 8),
        divides_by_root=fields.boolean("use_rslora", False),
        ranks={name: by.integer(name, 1, _MAX_RANK) for by, name in _patterns(fields, "rank_pattern")},
        alphas={name: by.number(name, 0, _MAX_ALPHA) for by, name in _patterns(fields, "alpha_pattern")},
    )


def _patterns(fields: Fields, name: str) -> list[tuple[Fields, str]]:
    nested = fields.nested(name)
    if nested is None:
        return []
    for pattern in nested.ordered_names:
        if not _PATTERN.fullmatch(pattern):
            raise nested.error(
                pattern[:200], "is a regular expression: only names of modules, or their ends, are served"
            )
    return [(nested, pattern) for pattern in nested.ordered_names]


def _fits(pattern: str, module: str) -> bool:
    name = pattern.removesuffix("$")
    if name.startswith("^"):
        return module == name[1:]
    return module == name or module.endswith(f".{name}")
