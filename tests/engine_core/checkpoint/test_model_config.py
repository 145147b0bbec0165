"""What is read from config.json, and what is refused with the name of the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from splitserve.engine_core.checkpoint.config.architectures import (
    ARCHITECTURES,
    CLASSIFIERS,
    read_model_config,
)
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.rope_config import RopeConfig
from splitserve.engine_core.checkpoint.config.traits import DecoderTraits
from splitserve.engine_core.checkpoint.weight_files import Checkpoint
from splitserve.engine_core.errors import ConfigError, ModelLoadError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 331,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 331,
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 6,
    "n_positions": 128,
    "torch_dtype": "float32",
}


def write(path: Path, base: dict[str, Any], changes: dict[str, Any]) -> Path:
    values = {name: value for name, value in {**base, **changes}.items() if value != "ABSENT"}
    (path / "config.json").write_text(json.dumps(values))
    return path


def read(path: Path, base: dict[str, Any] = LLAMA, **changes: Any) -> ModelConfig:
    return read_model_config(write(path, base, changes))


def test_a_llama_config_is_read_with_its_defaults(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert config.path == str(tmp_path)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (3, 6, 2, 8)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (331, 48, 80)
    assert (config.max_model_len, config.dtype, config.eos_token_ids) == (512, "bfloat16", (2,))
    assert not config.tie_word_embeddings
    assert config.traits == DecoderTraits()
    assert config.norm_eps == 1e-6
    assert config.attention_scales == (8**-0.5,) * 3
    assert config.ropes == (RopeConfig(rope_type="default", theta=10000.0),) * 3


def test_absent_kv_heads_mean_as_many_as_query_heads(tmp_path: Path) -> None:
    assert read(tmp_path, num_key_value_heads="ABSENT").num_kv_heads == 6


def test_a_gpt2_config_is_read_with_its_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, GPT2)
    assert (config.max_model_len, config.intermediate_size, config.head_dim) == (128, 192, 8)
    assert (config.activation, config.tie_word_embeddings, config.ropes) == ("gelu_tanh", True, ())


BAD_LLAMA = [
    ("num_attention_heads", 0),
    ("num_attention_heads", -6),
    ("num_attention_heads", 7),
    ("num_attention_heads", "six"),
    ("num_attention_heads", True),
    ("num_attention_heads", 6.5),
    ("num_attention_heads", "ABSENT"),
    ("num_key_value_heads", 0),
    ("num_key_value_heads", 4),
    ("num_key_value_heads", 12),
    ("hidden_size", -48),
    ("hidden_size", 10**30),
    ("hidden_size", [48]),
    ("vocab_size", 0),
    ("vocab_size", None),
    ("num_hidden_layers", 10**9),
    ("intermediate_size", 0),
    ("max_position_embeddings", 0),
    ("max_position_embeddings", 2**40),
    ("head_dim", 0),
    ("head_dim", 12),
    ("head_dim", 264),
    ("rope_theta", float("nan")),
    ("rope_theta", float("inf")),
    ("rope_theta", 0),
    ("rope_theta", "10000"),
    ("rms_norm_eps", float("nan")),
    ("rms_norm_eps", -1e-6),
    ("hidden_act", "gelu"),
    ("tie_word_embeddings", "yes"),
    ("attention_bias", 1),
    ("torch_dtype", "float8_e4m3fn"),
    ("torch_dtype", 16),
    ("eos_token_id", [0, "1"]),
    ("eos_token_id", list(range(300)) * 4),
    ("partial_rotary_factor", 0.5),
    ("quantization_config", {"quant_method": "gptq", "bits": 5}),
]


@pytest.mark.parametrize(("field", "value"), BAD_LLAMA)
def test_a_bad_value_is_refused_by_the_name_of_its_field(field: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError) as raised:
        read(tmp_path, **{field: value})
    message = str(raised.value)
    # PyTorch's name of the dtype field is the older one; the message uses the current one.
    assert field.removeprefix("torch_") in message
    assert str(tmp_path) in message
    assert len(message) < 1000


BAD_GPT2 = [
    ("n_head", 7),
    ("n_head", 0),
    ("n_embd", "ABSENT"),
    ("n_positions", 0),
    ("n_inner", -1),
    ("activation_function", "relu"),
    ("add_cross_attention", True),
    ("layer_norm_epsilon", float("inf")),
]


@pytest.mark.parametrize(("field", "value"), BAD_GPT2)
def test_a_bad_gpt2_value_is_refused_by_the_name_of_its_field(field: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=field):
        read(tmp_path, GPT2, **{field: value})


@pytest.mark.parametrize(
    "asked", [["T5ForConditionalGeneration"], ["BloomModel"], [], None, "LlamaForCausalLM", [1]]
)
def test_an_unknown_architecture_is_named_beside_the_supported_ones(asked: object, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="architectures") as raised:
        read(tmp_path, architectures=asked)
    if asked == ["BloomModel"]:
        assert "BloomModel" in str(raised.value)
        supported = ", ".join((*ARCHITECTURES, *CLASSIFIERS))
        assert f"supported architectures: {supported};" in str(raised.value)


def test_other_decoders_are_left_to_the_transformers_library(tmp_path: Path) -> None:
    read(tmp_path, architectures=["ArceeForCausalLM"], model_type="arcee")
    assert read_model_config(tmp_path).family == "transformers"
    assert read_model_config(tmp_path, "transformers").family == "transformers"
    with pytest.raises(ModelLoadError, match="ArceeForCausalLM"):
        read_model_config(tmp_path, "native")


def test_the_library_can_be_asked_for_instead_of_native_layers(tmp_path: Path) -> None:
    assert read(tmp_path).family == "decoder"
    assert read_model_config(tmp_path, "native").family == "decoder"
    assert read_model_config(tmp_path, "transformers").family == "transformers"


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("hidden_size", "hidden_size"),
        ("num_hidden_layers", "num_hidden_layers"),
        ("num_attention_heads", "num_attention_heads"),
        ("max_position_embeddings", "max_position_embeddings"),
        ("vocab_size", "vocab_size"),
    ],
)
def test_a_decoder_of_the_library_must_name_its_sizes(missing: str, named: str, tmp_path: Path) -> None:
    write(tmp_path, LLAMA, {"architectures": ["ArceeForCausalLM"], "model_type": "arcee", missing: None})
    with pytest.raises(ModelLoadError, match=f"{named} is missing"):
        read_model_config(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"\xff\xfe{}", b"[" * 100_000, b'{"vocab_size": ' + b"9" * 5000 + b"}"]
)
def test_what_is_no_json_object_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        read_model_config(tmp_path)


def test_a_missing_config_or_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json does not exist"):
        read_model_config(tmp_path)
    with pytest.raises(ModelLoadError, match="none is neither a directory nor a GGUF file"):
        read_model_config(tmp_path / "none")


def test_custom_code_is_noted_and_not_executed(tmp_path: Path) -> None:
    (tmp_path / "modeling.py").write_text("raise SystemExit('executed')")
    assert read(tmp_path, auto_map={"AutoModelForCausalLM": "modeling.Model"}).has_custom_code
    assert not read(tmp_path).has_custom_code


def test_end_tokens_of_the_generation_config_win(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert read(tmp_path).eos_token_ids == (7, 9)
    (tmp_path / "generation_config.json").write_text("{}")
    assert read(tmp_path).eos_token_ids == (2,)
    assert read(tmp_path, eos_token_id=None).eos_token_ids == ()


def test_end_tokens_that_the_vocabulary_does_not_have_end_nothing(tmp_path: Path) -> None:
    config = read(tmp_path, eos_token_id=[-1, 2, 331, 50256])
    assert config.eos_token_ids == (2,)
    assert config.named_eos_token_ids == (-1, 2, 331, 50256)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, (4096,) * 3),
        ({"sliding_window": None}, (0, 0, 0)),
        ({"sliding_window": 99}, (99, 99, 99)),
    ],
)
def test_mistral_has_one_window_for_all_layers(
    changes: dict[str, Any], windows: tuple[int, ...], tmp_path: Path
) -> None:
    config = read(tmp_path, architectures=["MistralForCausalLM"], **changes)
    assert config.sliding_windows == windows
    assert config.sliding_window == windows[0]


@pytest.mark.parametrize(
    ("changes", "windows", "common"),
    [
        ({}, (0, 0, 0), 0),
        ({"sliding_window": 99, "max_window_layers": 0}, (0, 0, 0), 0),
        ({"use_sliding_window": True, "sliding_window": 99, "max_window_layers": 1}, (0, 99, 99), 0),
        ({"use_sliding_window": True, "sliding_window": 99, "max_window_layers": 0}, (99,) * 3, 99),
        ({"use_sliding_window": True, "sliding_window": 99}, (0, 0, 0), 0),
        ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, (0, 0, 0), 0),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 99,
                "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            },
            (99, 0, 0),
            0,
        ),
    ],
)
@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_qwen_has_windows_where_its_config_puts_them(
    architecture: str, changes: dict[str, Any], windows: tuple[int, ...], common: int, tmp_path: Path
) -> None:
    config = read(tmp_path, architectures=[architecture], **changes)
    assert config.sliding_windows == windows
    assert config.sliding_window == common


@pytest.mark.parametrize(("windows", "widest"), [((24, 99, 48), 99), ((24, 0, 48), 0), ((), 0)])
def test_windows_of_several_widths_are_kept_for_the_widest(
    windows: tuple[int, ...], widest: int, tmp_path: Path
) -> None:
    config = read(tmp_path, architectures=["MistralForCausalLM"])
    assert msgspec.structs.replace(config, sliding_windows=windows).sliding_window == widest


@pytest.mark.parametrize("kinds", [["full_attention"], ["full_attention", "chunked_attention"] * 2, "full"])
def test_bad_layer_types_are_refused(kinds: object, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="layer_types"):
        read(tmp_path, architectures=["Qwen2ForCausalLM"], use_sliding_window=True, layer_types=kinds)


def test_a_shorter_context_may_be_asked_for_but_no_longer_one(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert config.limited_to(100).max_model_len == 100
    assert config.limited_to(0).max_model_len == 512
    with pytest.raises(ConfigError, match="--max-model-len 513"):
        config.limited_to(513)


def test_a_refusal_can_be_sent_to_another_process_whatever_it_quotes(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"\\ud800": 1}}')
    with pytest.raises(ModelLoadError, match="ud800") as caught:
        Checkpoint.open(tmp_path)
    assert str(caught.value).encode()
