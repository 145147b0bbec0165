"""What a checkpoint's config.json says about the model, read as data and never as code."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine_core.errors import ConfigError, ModelLoadError
from worker.checkpoint import stored_dtype
from worker.config_fields import Fields
from worker.rope_config import RopeConfig, read_rope_config

logger = logging.getLogger(__name__)

_MAX_LAYERS = 1024
_MAX_HEADS = 4096
_MAX_HEAD_DIM = 256
_MAX_WIDTH = 2**20
_MAX_VOCAB = 2**24
# Four times the longest context published; the rotary table takes this many rows.
_MAX_LEN = 2**22
_DTYPES = ("float32", "bfloat16", "float16")
_TANH_GELUS = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only model, every value within its range.

    Attributes:
        path: checkpoint directory.
        architecture: e.g. "LlamaForCausalLM".
        dtype: of the checkpoint, "float32", "bfloat16" or "float16"; "" where there are no weights to tell.
        vocab_size: rows of the embedding.
        hidden_size, intermediate_size: widths of the residual stream and of the MLP.
        num_layers, num_heads, num_kv_heads, head_dim: num_heads is a multiple of num_kv_heads.
        max_position_embeddings: positions the checkpoint was made for.
        max_model_len: longest sequence served, in tokens; rotary tables have this many rows.
        norm_eps: epsilon of every norm.
        activation: "silu", "gelu" (exact) or "gelu_tanh".
        attention_bias, mlp_bias: what the fields of that name say; what they cover differs per architecture.
        tie_word_embeddings: the output head shares the embedding's weight.
        eos_token_ids: ids that end a sequence.
        sliding_windows: per layer, how many tokens a query sees, itself included; 0 for all.
        attention_scales: per layer, what multiplies query times key.
        rope: rotary embedding, None for learned positions.
    """

    path: str
    architecture: str
    dtype: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    max_model_len: int
    norm_eps: float
    activation: str
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    sliding_windows: tuple[int, ...]
    attention_scales: tuple[float, ...]
    attention_bias: bool = False
    mlp_bias: bool = False
    rope: RopeConfig | None = None

    @property
    def sliding_window(self) -> int:
        """The window in tokens if all layers have the same one, otherwise 0: some layer needs every token."""
        windows = set(self.sliding_windows)
        return windows.pop() if len(windows) == 1 else 0

    def limited_to(self, max_model_len: int) -> ModelConfig:
        """Return this config with a shorter context; 0 keeps the checkpoint's.

        Raises:
            ConfigError: the checkpoint has no positions for so long a context.
        """
        if not 0 <= max_model_len <= self.max_model_len:
            raise ConfigError(
                f"--max-model-len {max_model_len} is above what {self.path} supports, {self.max_model_len}"
            )
        return msgspec.structs.replace(self, max_model_len=max_model_len or self.max_model_len)


def read_model_config(directory: str | Path) -> ModelConfig:
    """Read and check config.json and generation_config.json of a checkpoint directory.

    Raises:
        ModelLoadError: names the file and the field that is missing, out of range or not supported, or the
            architecture if it is unknown.
    """
    path = Path(directory)
    if not path.is_dir():
        raise ModelLoadError(f"{path} is not a directory")
    config = Fields.from_file(path / "config.json")
    architecture = _architecture(config)
    if config.has("auto_map"):
        logger.warning("custom_code_ignored path=%s: auto_map in config.json is never executed", path)
    if config.has("quantization_config"):
        raise config.error("quantization_config", "is set, and quantised checkpoints are not supported")
    return _READERS[architecture](path, architecture, config)


def supported_architectures() -> list[str]:
    """Return the names of the architectures that config.json may ask for."""
    return sorted(_READERS)


def _architecture(config: Fields) -> str:
    names = config.texts("architectures")
    for name in names:
        if name in _READERS:
            return name
    asked = ", ".join(map(repr, names[:4]))[:200] or "none"
    raise config.error(
        "architectures",
        f"names {asked}, which is not supported; supported are {', '.join(supported_architectures())}",
    )


# --- the Llama family -------------------------------------------------------------------------


def _read_llama(path: Path, architecture: str, config: Fields) -> ModelConfig:
    return _read_decoder(path, architecture, config, lambda num_layers: (0,) * num_layers)


def _read_mistral(path: Path, architecture: str, config: Fields) -> ModelConfig:
    # Absent means the 4096 of the first release; null, as in later releases, means full attention.
    window = 0 if config.is_null("sliding_window") else config.integer("sliding_window", 1, _MAX_LEN, 4096)
    return _read_decoder(path, architecture, config, lambda num_layers: (window,) * num_layers)


def _read_qwen(path: Path, architecture: str, config: Fields) -> ModelConfig:
    return _read_decoder(path, architecture, config, lambda num_layers: _qwen_windows(config, num_layers))


def _qwen_windows(config: Fields, num_layers: int) -> tuple[int, ...]:
    """Return the window per layer: `layer_types` decides, else every layer from max_window_layers on."""
    if not config.boolean("use_sliding_window", False) or config.is_null("sliding_window"):
        return (0,) * num_layers
    window = config.integer("sliding_window", 1, _MAX_LEN, 4096)
    if not config.has("layer_types"):
        first = config.integer("max_window_layers", 0, _MAX_LAYERS, 28)
        return tuple(window if i >= first else 0 for i in range(num_layers))
    kinds = config.texts("layer_types")
    if len(kinds) != num_layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise config.error(
            "layer_types", f"must name full_attention or sliding_attention for each of {num_layers} layers"
        )
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _read_decoder(
    path: Path, architecture: str, config: Fields, windows: Callable[[int], tuple[int, ...]]
) -> ModelConfig:
    vocab_size = config.integer("vocab_size", 1, _MAX_VOCAB)
    hidden_size = config.integer("hidden_size", 1, _MAX_WIDTH)
    num_layers = config.integer("num_hidden_layers", 1, _MAX_LAYERS)
    num_heads = config.integer("num_attention_heads", 1, _MAX_HEADS)
    max_positions = config.integer("max_position_embeddings", 1, _MAX_LEN, 2048)
    head_dim = _head_dim(config, hidden_size, num_heads, 128 if architecture == "Qwen3ForCausalLM" else None)
    rope = read_rope_config(config, max_positions)
    if config.text("hidden_act", "silu") not in ("silu", "swish"):
        raise config.error("hidden_act", f"must be silu, got {config.text('hidden_act')!r}")
    return ModelConfig(
        path=str(path),
        architecture=architecture,
        dtype=_dtype(path, config),
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size", 1, _MAX_WIDTH),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(config, num_heads),
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        max_model_len=_extended_len(config, rope, max_positions),
        norm_eps=config.number("rms_norm_eps", 0.0, 0.1, 1e-6),
        activation="silu",
        tie_word_embeddings=config.boolean("tie_word_embeddings", False),
        eos_token_ids=_eos_token_ids(path, config, vocab_size),
        sliding_windows=windows(num_layers),
        attention_scales=(head_dim**-0.5,) * num_layers,
        attention_bias=config.boolean("attention_bias", False),
        mlp_bias=config.boolean("mlp_bias", False),
        rope=rope,
    )


def _extended_len(config: Fields, rope: RopeConfig, max_positions: int) -> int:
    max_model_len = rope.extended_len(max_positions)
    if max_model_len > _MAX_LEN:
        raise config.error("rope factor", f"makes a context of {max_model_len} tokens, above {_MAX_LEN}")
    return max_model_len


def _head_dim(config: Fields, hidden_size: int, num_heads: int, default: int | None) -> int:
    if not config.has("head_dim") and default is None:
        if hidden_size % num_heads:
            raise config.error(
                "num_attention_heads", f"({num_heads}) does not divide hidden_size ({hidden_size})"
            )
        default = hidden_size // num_heads
    return _check_head_dim(config, config.integer("head_dim", 1, _MAX_HEAD_DIM, default))


def _check_head_dim(config: Fields, head_dim: int) -> int:
    # What the attention kernels take.
    if head_dim % 8 or head_dim > _MAX_HEAD_DIM:
        raise config.error("head_dim", f"must be a multiple of 8 up to {_MAX_HEAD_DIM}, got {head_dim}")
    return head_dim


def _num_kv_heads(config: Fields, num_heads: int) -> int:
    num_kv_heads = config.integer("num_key_value_heads", 1, num_heads, num_heads)
    if num_heads % num_kv_heads:
        raise config.error(
            "num_key_value_heads", f"({num_kv_heads}) does not divide num_attention_heads ({num_heads})"
        )
    return num_kv_heads


# --- GPT-2 ------------------------------------------------------------------------------------


def _read_gpt2(path: Path, architecture: str, config: Fields) -> ModelConfig:
    if config.boolean("add_cross_attention", False):
        raise config.error("add_cross_attention", "is true, and cross attention is not supported")
    vocab_size = config.integer("vocab_size", 1, _MAX_VOCAB)
    hidden_size = config.integer("n_embd", 1, _MAX_WIDTH)
    num_layers = config.integer("n_layer", 1, _MAX_LAYERS)
    num_heads = config.integer("n_head", 1, _MAX_HEADS)
    if hidden_size % num_heads:
        raise config.error("n_head", f"({num_heads}) does not divide n_embd ({hidden_size})")
    head_dim = _check_head_dim(config, hidden_size // num_heads)
    max_positions = config.integer("n_positions", 1, _MAX_LEN)
    return ModelConfig(
        path=str(path),
        architecture=architecture,
        dtype=_dtype(path, config),
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=config.integer("n_inner", 1, _MAX_WIDTH, 4 * hidden_size),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        max_model_len=max_positions,
        norm_eps=config.number("layer_norm_epsilon", 0.0, 0.1, 1e-5),
        activation=_gelu_kind(config),
        tie_word_embeddings=config.boolean("tie_word_embeddings", True),
        eos_token_ids=_eos_token_ids(path, config, vocab_size),
        sliding_windows=(0,) * num_layers,
        attention_scales=_gpt2_scales(config, num_layers, head_dim),
    )


def _gelu_kind(config: Fields) -> str:
    name = config.text("activation_function", "gelu_new")
    if name in _TANH_GELUS:
        return "gelu_tanh"
    if name != "gelu":
        raise config.error("activation_function", f"must be gelu or {', '.join(_TANH_GELUS)}, got {name!r}")
    return "gelu"


def _gpt2_scales(config: Fields, num_layers: int, head_dim: int) -> tuple[float, ...]:
    scale = head_dim**-0.5 if config.boolean("scale_attn_weights", True) else 1.0
    if config.boolean("scale_attn_by_inverse_layer_idx", False):
        return tuple(scale / (i + 1) for i in range(num_layers))
    return (scale,) * num_layers


# --- common fields ----------------------------------------------------------------------------


def _dtype(path: Path, config: Fields) -> str:
    """Return the dtype that config.json names, or else that of most of the weights, or "" without weights."""
    name = config.text("dtype", config.text("torch_dtype", "")).removeprefix("torch.")
    name = name or stored_dtype(path)
    if name not in ("", *_DTYPES):
        raise config.error("dtype", f"must be one of {', '.join(_DTYPES)}, got {name!r}")
    return name


def _eos_token_ids(path: Path, config: Fields, vocab_size: int) -> tuple[int, ...]:
    """Return the ids of generation_config.json, where chat models name theirs, or else of config.json."""
    generation_path = path / "generation_config.json"
    if generation_path.exists():
        generation = Fields.from_file(generation_path)
        if generation.has("eos_token_id"):
            return generation.token_ids("eos_token_id", vocab_size)
    return config.token_ids("eos_token_id", vocab_size)


_READERS: dict[str, Callable[[Path, str, Fields], ModelConfig]] = {
    "GPT2LMHeadModel": _read_gpt2,
    "LlamaForCausalLM": _read_llama,
    "MistralForCausalLM": _read_mistral,
    "Qwen2ForCausalLM": _read_qwen,
    "Qwen3ForCausalLM": _read_qwen,
}
