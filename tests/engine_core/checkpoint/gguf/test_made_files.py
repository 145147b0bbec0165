"""Which config.json a GGUF file stands for, and what it is refused for."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitserve.engine_core.checkpoint.check import check_model
from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.checkpoint.files import read_file, read_json
from splitserve.engine_core.checkpoint.state import file_states
from splitserve.engine_core.checkpoint.text_files import check_text_files
from splitserve.engine_core.errors import ModelLoadError
from tests.engine_core.checkpoint.gguf_writing import Tensor, Value, embedding, file_bytes, llama


def write(path: Path, metadata: dict[str, Value], tensors: dict[str, Tensor] | None = None) -> Path:
    path.write_bytes(file_bytes(metadata, embedding() if tensors is None else tensors))
    return path


def test_a_file_has_a_config_and_a_tokenizer_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", llama())
    assert read_json(path / "config.json")["architectures"] == ["LlamaForCausalLM"]
    assert read_json(path / "tokenizer.json")["version"] == "1.0"
    assert read_json(path / "tokenizer_config.json")["eos_token"] == "</s>"
    assert read_file(path / "generation_config.json") is None
    assert read_file(path / "model.safetensors") is None
    check_text_files(path)


def test_in_other_files_there_are_no_files(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("GG")
    assert read_file(path / "config.json") is None


def test_the_config_has_the_sizes_of_the_metadata(tmp_path: Path) -> None:
    model = read_model_config(write(tmp_path / "m.gguf", llama(**{"llama.attention.head_count_kv": 1})))
    assert (model.vocab_size, model.hidden_size, model.intermediate_size) == (6, 16, 32)
    assert (model.num_layers, model.num_heads, model.num_kv_heads, model.head_dim) == (1, 2, 1, 8)
    assert model.max_model_len == 64
    assert model.tie_word_embeddings
    assert model.dtype == "float32"
    assert model.traits.attention.is_rotary_interleaved


def test_turns_end_with_the_named_tokens_and_the_known_control_tokens(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", llama(**{"tokenizer.ggml.eot_token_id": 0}))
    assert read_model_config(path).eos_token_ids == (0, 1, 5)


def test_a_window_makes_a_llama_a_mistral(tmp_path: Path) -> None:
    model = read_model_config(write(tmp_path / "m.gguf", llama(**{"llama.attention.sliding_window": 32})))
    assert (model.architecture, model.sliding_windows) == ("MistralForCausalLM", (32,))


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", llama())
    first, states = read_model_config(path), file_states(str(path))
    write(path, {**llama(), "llama.context_length": 128, "general.name": "longer"})
    assert (first.max_model_len, read_model_config(path).max_model_len) == (64, 128)
    assert states != file_states(str(path))


REFUSED: list[tuple[dict[str, Value], str]] = [
    ({"general.architecture": "mamba"}, "general.architecture must be one of llama, .* got 'mamba'"),
    ({"general.architecture": 3}, "general.architecture must be a string"),
    ({"split.count": 2}, "'split.count' says that it is one of 2 parts, so its name must end in -00001-of"),
    ({"split.count": "two"}, "metadata 'split.count' must be an integer, got 'two'"),
    ({"llama.expert_count": 8}, "llama.expert_used_count"),
    ({"llama.block_count": 2**20}, "num_hidden_layers must be an integer from 1 to 1024"),
    ({"llama.block_count": "one"}, "llama.block_count must be an integer"),
    ({"llama.attention.head_count": 0}, "num_attention_heads must be an integer from 1"),
    ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "layer_norm_rms_epsilon must be a number"),
    ({"llama.rope.scaling.type": "longrope"}, "llama.rope.scaling.type must be none, linear or yarn"),
    ({"llama.rope.freq_base": float("inf")}, "llama.rope.freq_base must be a number"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_is_not_supported_is_refused_by_name(
    changes: dict[str, Value], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "model.gguf", llama(**changes))
    with pytest.raises(ModelLoadError, match=rf"model\.gguf.*{message}"):
        read_model_config(path)


def test_missing_metadata_and_tensors_are_named(tmp_path: Path) -> None:
    metadata = llama()
    del metadata["llama.context_length"]
    with pytest.raises(ModelLoadError, match=r"llama\.context_length is missing"):
        read_model_config(write(tmp_path / "m", metadata))
    with pytest.raises(ModelLoadError, match=r"'token_embd\.weight' is missing"):
        read_model_config(write(tmp_path / "m", llama(), {}))


def test_a_tensor_that_belongs_to_nothing_is_refused(tmp_path: Path) -> None:
    tensors = {**embedding(), "blk.0.attn_sinks.weight": Tensor(0, [8], bytes(32))}
    with pytest.raises(ModelLoadError, match=r"'blk\.0\.attn_sinks\.weight' belongs to nothing"):
        check_model(write(tmp_path / "m", llama(), tensors))


def test_factors_that_are_not_llama_3s_are_refused(tmp_path: Path) -> None:
    tensors = {**embedding(), "rope_freqs.weight": Tensor(0, [4], bytes(range(16)))}
    with pytest.raises(ModelLoadError, match=r"'rope_freqs\.weight' has other factors"):
        read_model_config(write(tmp_path / "m", llama(), tensors))
