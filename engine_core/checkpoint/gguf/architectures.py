"""Which architectures of GGUF are read, and what config.json they stand for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.gguf.gguf_file import GgufContents
from splitserve.engine_core.checkpoint.gguf.names import (
    GEMMA2,
    GEMMA3,
    GPT_OSS,
    LLAMA,
    MIXTRAL,
    PHI3,
    QWEN3,
    QWEN3_MOE,
)
from splitserve.engine_core.errors import ModelLoadError

ARCHITECTURE = "general.architecture"
_MAX_INTEGER = 2**31
_MAX_FACTOR = 1e6
_LLAMA3_CONTEXT = 8192
Config = dict[str, object]


class Described(NamedTuple):
    """What a file says of itself.

    Attributes:
        metadata: all of it.
        contents: the file.
        prefix: of the architecture's own keys.
    """

    metadata: Fields
    contents: GgufContents
    prefix: str

    def key(self, name: str) -> str:
        """Return the key of a field of the architecture."""
        return f"{self.prefix}.{name}"

    def has(self, name: str) -> bool:
        """Whether there is such a field of the architecture."""
        return self.metadata.has(self.key(name))

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a field of the architecture from 0 on; readers of config.json check its range."""
        return self.metadata.integer(self.key(name), 0, _MAX_INTEGER, default)

    def number(self, name: str, high: float, default: float | None = None) -> float:
        """Return a field of the architecture from 0 on."""
        return self.metadata.number(self.key(name), 0.0, high, default)


class GgufArchitecture(NamedTuple):
    """One entry of the registry.

    Attributes:
        blocks: names of tensors within a layer.
        read: returns what its config.json has besides the fields that all have.
        norm_offset: added to the weights of norms in the file.
        is_rotary_interleaved: elements of a head that turn together are neighbours in the file.
    """

    blocks: Mapping[str, str]
    read: Callable[[Described], Config]
    norm_offset: float = 0.0
    is_rotary_interleaved: bool = False


def find_architecture(contents: GgufContents) -> tuple[GgufArchitecture, Described]:
    """Return the registry's entry for a file, and what the file says.

    Raises:
        ModelLoadError: its architecture is not supported.
    """
    metadata = Fields(contents.header.metadata, f"{contents.path}: metadata")
    name = metadata.text(ARCHITECTURE, "")
    if name not in GGUF_ARCHITECTURES:
        known = ", ".join(GGUF_ARCHITECTURES)
        raise metadata.error(ARCHITECTURE, f"must be one of {known}, got {name!r:.100}")
    return GGUF_ARCHITECTURES[name], Described(metadata, contents, name)


def common_config(described: Described) -> Config:
    """Return the fields of config.json that all architectures have.

    Raises:
        ModelLoadError: a metadata is missing, or out of range.
    """
    tensors = described.contents.header.tensors
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelLoadError(
            f"{described.contents.path}: tensor 'token_embd.weight' is missing, or no matrix"
        )
    hidden_size = described.integer("embedding_length")
    num_heads = described.integer("attention.head_count")
    if described.integer("expert_count", 0) and described.prefix not in _WITH_EXPERTS:
        raise described.metadata.error(
            described.key("expert_count"), f"must be 0: experts are read of {', '.join(_WITH_EXPERTS)} only"
        )
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": described.integer("feed_forward_length"),
        "num_hidden_layers": described.integer("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": described.integer("attention.head_count_kv", num_heads),
        "head_dim": described.integer("attention.key_length", hidden_size // max(1, num_heads)),
        "max_position_embeddings": described.integer("context_length"),
        "rms_norm_eps": described.number("attention.layer_norm_rms_epsilon", 0.1),
        "rope_theta": described.number("rope.freq_base", 1e15, 10000.0),
        "tie_word_embeddings": "output.weight" not in tensors,
    }


def _llama(described: Described) -> Config:
    tensors = described.contents.header.tensors
    config: Config = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in tensors,
        **_scaling(described),
    }
    if described.has("attention.sliding_window"):
        config |= {"architectures": ["MistralForCausalLM"], "sliding_window": _window(described)}
    if "rope_freqs.weight" in described.contents.vectors:
        config |= {"rope_scaling": _llama3_scaling(described)}
    if described.integer("expert_count", 0):
        config |= {"architectures": ["MixtralForCausalLM"], **_experts(described)}
    return config


def _experts(described: Described) -> Config:
    return {
        "num_local_experts": described.integer("expert_count"),
        "num_experts_per_tok": described.integer("expert_used_count"),
    }


def _llama3_scaling(described: Described) -> Config:
    """Return the parameters of Llama 3's scaling, of which a file has only the factors they give.

    Raises:
        ModelLoadError: no parameters in use give these factors.
    """
    factors = described.contents.vectors["rope_freqs.weight"]
    theta = described.number("rope.freq_base", 1e15, 10000.0)
    parameters = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "factor": max(factors)}
    waves = [2 * math.pi * theta ** (i / len(factors)) for i in range(len(factors))]
    # Compared first, as a NaN or a factor of 0 cannot be computed with.
    if not all(0.99 <= factor <= _MAX_FACTOR for factor in factors) or not all(
        math.isclose(factor, _llama3_factor(wave, parameters, _LLAMA3_CONTEXT), rel_tol=1e-4)
        for factor, wave in zip(factors, waves, strict=True)
    ):
        raise ModelLoadError(
            f"{described.contents.path}: tensor 'rope_freqs.weight' has other factors than Llama 3's scaling"
        )
    return {"rope_type": "llama3", "original_max_position_embeddings": _LLAMA3_CONTEXT, **parameters}


def _llama3_factor(wavelength: float, parameters: Mapping[str, float], original: int) -> float:
    low, high, factor = (parameters[name] for name in ("low_freq_factor", "high_freq_factor", "factor"))
    if wavelength < original / high:
        return 1.0
    if wavelength > original / low:
        return factor
    smooth = (original / wavelength - low) / (high - low)
    return 1.0 / ((1.0 - smooth) / factor + smooth)


def _qwen2(described: Described) -> Config:
    return {"architectures": ["Qwen2ForCausalLM"], **_scaling(described)}


def _qwen3(described: Described) -> Config:
    return {"architectures": ["Qwen3ForCausalLM"], **_scaling(described)}


def _qwen3_moe(described: Described) -> Config:
    # Its files say nothing of weights that do not add up, nor of layers without experts.
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "moe_intermediate_size": described.integer("expert_feed_forward_length"),
        "norm_topk_prob": True,
        **_experts(described),
        **_scaling(described),
    }


def _gpt_oss(described: Described) -> Config:
    config: Config = {
        "architectures": ["GptOssForCausalLM"],
        "intermediate_size": described.integer("expert_feed_forward_length"),
        "sliding_window": _window(described),
        **_experts(described),
        **_scaling(described),
    }
    scaling = config.get("rope_scaling")
    if isinstance(scaling, dict):
        scaling["truncate"] = False
    kinds = {
        entry.dtype for name, entry in described.contents.header.tensors.items() if "_exps.weight" in name
    }
    # In files where others are among them each matrix is kept as it is.
    return {**config, "quantization_config": {"quant_method": "mxfp4"}} if kinds == {"MXFP4"} else config


def _phi3(described: Described) -> Config:
    config: Config = {"architectures": ["Phi3ForCausalLM"], "sliding_window": None}
    if described.has("attention.sliding_window"):
        config["sliding_window"] = _window(described)
    head_dim = described.integer("embedding_length") // max(1, described.integer("attention.head_count"))
    turned = described.integer("rope.dimension_count", head_dim)
    config["partial_rotary_factor"] = turned / max(1, head_dim)
    vectors = described.contents.vectors
    short, long = vectors.get("rope_factors_short.weight"), vectors.get("rope_factors_long.weight")
    if short is None or long is None:
        return config
    original = described.integer("rope.scaling.original_context_length")
    scaling: Config = {"rope_type": "longrope", "short_factor": list(short), "long_factor": list(long)}
    if described.has("rope.scaling.attn_factor"):
        scaling["attention_factor"] = described.number("rope.scaling.attn_factor", 1e3)
    return {**config, "original_max_position_embeddings": original, "rope_scaling": scaling}


def _gemma2(described: Described) -> Config:
    return {
        "architectures": ["Gemma2ForCausalLM"],
        "sliding_window": _window(described),
        "attn_logit_softcapping": described.number("attn_logit_softcapping", 1e6, 50.0),
        "final_logit_softcapping": described.number("final_logit_softcapping", 1e6, 30.0),
        "query_pre_attn_scalar": _query_scalar(described, 46),
        **_scaling(described),
    }


def _gemma3(described: Described) -> Config:
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "sliding_window": _window(described),
        "query_pre_attn_scalar": _query_scalar(described, 62),
        **_scaling(described),
    }


def _query_scalar(described: Described, layers_of_27b: int) -> int:
    """Return what scores are divided by the root of: a head's size, but for the models of 27B."""
    if described.integer("block_count") == layers_of_27b:
        return described.integer("embedding_length") // max(1, described.integer("attention.head_count"))
    return described.integer("attention.key_length")


def _window(described: Described) -> int:
    return described.integer("attention.sliding_window")


def _scaling(described: Described) -> Config:
    """Return `rope_scaling` for the kinds that metadata can describe whole.

    Raises:
        ModelLoadError: it is another kind.
    """
    kind = described.metadata.text(described.key("rope.scaling.type"), "none")
    if kind == "none":
        return {}
    if kind not in ("linear", "yarn"):
        raise described.metadata.error(
            described.key("rope.scaling.type"), f"must be none, linear or yarn, got {kind!r:.100}"
        )
    scaling: Config = {"rope_type": kind, "factor": described.number("rope.scaling.factor", 1e6)}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = described.integer(
            "rope.scaling.original_context_length"
        )
    return {"rope_scaling": scaling}


GGUF_ARCHITECTURES = {
    "llama": GgufArchitecture(MIXTRAL, _llama, is_rotary_interleaved=True),
    "qwen2": GgufArchitecture(LLAMA, _qwen2),
    "qwen3": GgufArchitecture(QWEN3, _qwen3),
    "qwen3moe": GgufArchitecture(QWEN3_MOE, _qwen3_moe),
    "gpt-oss": GgufArchitecture(GPT_OSS, _gpt_oss),
    "phi3": GgufArchitecture(PHI3, _phi3),
    "gemma2": GgufArchitecture(GEMMA2, _gemma2, norm_offset=-1.0),
    "gemma3": GgufArchitecture(GEMMA3, _gemma3, norm_offset=-1.0),
}
"""By `general.architecture`, in the order in which errors list them. Mistral's and Mixtral's is llama."""
_WITH_EXPERTS = ("llama", "qwen3moe", "gpt-oss")
