"""Mutated files of a checkpoint on the code that checks them: either they are accepted, or refused by name.

A case is one file: a byte that says which one (the index in FILES), then its contents; the other files of
the folder are sound.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

from splitserve.engine_core.checkpoint.check import check_model
from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.checkpoint.config.sampling_defaults import load_sampling_defaults
from splitserve.engine_core.checkpoint.gguf.gguf_file import GgufFile, is_gguf
from splitserve.engine_core.checkpoint.safetensors_file import SafetensorsFile
from splitserve.engine_core.checkpoint.text_files import check_text_files
from splitserve.engine_core.checkpoint.weight_files import Checkpoint, stored_dtype
from splitserve.engine_core.errors import ConfigError, ModelLoadError
from splitserve.engine_core.executor.simulated.model import simulated_model
from tests.engine_core.checkpoint.gguf_writing import Tensor, Value, embedding, llama
from tests.engine_core.checkpoint.gguf_writing import file_bytes as gguf_bytes
from tests.engine_core.checkpoint.test_model_config import GPT2, LLAMA
from tests.engine_core.checkpoint.writing import entry, file_bytes
from tests.frontend.checkpoints import write_checkpoint
from tests.fuzz.case import Case
from tests.fuzz.folders import make_folder
from tests.fuzz.mutation.formats import Mutate, mutate_json, mutate_raw, mutate_safetensors

WEIGHTS = "model.safetensors"
GGUF = "model.gguf"
INDEX = "model.safetensors.index.json"
SHARD = "model-00001-of-00001.safetensors"


def configs() -> list[bytes]:
    """A config.json of every architecture."""
    rope: dict[str, object] = {"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128}
    group = {
        "targets": ["Linear", "re:.*up"],
        "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
    }
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:.*down": {}}}
    quantized: list[dict[str, object]] = [
        {**gptq, "modules_in_block_to_quantize": [["q_proj"]]},
        {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["mlp.gate"]},
        {"quant_method": "fp8", "weight_block_size": [128, 128], "ignored_layers": ["lm_head"]},
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", "*up*"]},
        {
            **{"quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["re:.*q_proj"]},
            **{"config_groups": {"group_0": group}, "kv_cache_scheme": None},
        },
    ]
    variants = [
        *({**LLAMA, "quantization_config": config} for config in quantized),
        GPT2,
        LLAMA,
        {**LLAMA, "rope_scaling": rope, "rope_theta": 5e5, "tie_word_embeddings": True, "head_dim": 8},
        {
            **LLAMA,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
            "quantization_config": None,
        },
        {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 64},
        {
            **{**LLAMA, "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True},
            **{"max_window_layers": 1, "sliding_window": 32, "layer_types": ["full_attention"] * 3},
        },
        {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "head_dim": 24, "eos_token_id": [1, 2, 3]},
        {
            **{**LLAMA, "architectures": ["Phi3ForCausalLM"], "original_max_position_embeddings": 64},
            "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
        },
        {
            **{**LLAMA, "architectures": ["Gemma3ForCausalLM"], "head_dim": 8, "sliding_window_pattern": 2},
            **{"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_local_base_freq": 1e4},
            **{"query_pre_attn_scalar": 8, "final_logit_softcapping": 30.0, "hidden_activation": "gelu_new"},
        },
        {
            **{**LLAMA, "architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 1, 0]},
            **{"use_sliding_window": True, "sliding_window": 16},
        },
    ]
    return [json.dumps(variant).encode() for variant in variants]


def generation_configs() -> list[bytes]:
    """A generation_config.json with everything that is read, and one with nothing."""
    values = {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1}
    full = {**values, "max_new_tokens": 20, "do_sample": True, "eos_token_id": [1, 2], "bos_token_id": 0}
    return [json.dumps(full).encode(), b"{}"]


def weights() -> list[bytes]:
    """Safetensors files."""
    tensors: dict[str, object] = {
        "__metadata__": {"format": "pt"},
        "a": entry("F32", [2, 3], 0, 24),
        "b": entry("BF16", [4], 24, 32),
        "scalar": entry("I64", [], 32, 40),
        "empty": entry("F16", [0, 5], 40, 40),
    }
    one: dict[str, object] = {"a": entry("U8", [8, 1], 0, 8)}
    return [file_bytes(tensors, bytes(40)), file_bytes(one, bytes(8)), file_bytes({}, b"")]


def gguf_files() -> list[bytes]:
    """GGUF files of both kinds of tokenizers."""
    scores: dict[str, Value] = {"tokenizer.ggml.scores": [0.0, 0.0, -1.0, -2.0, -3.0, 0.0]}
    sentencepiece: dict[str, Value] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        **scores,
    }
    blocks = {**embedding(), "blk.0.ffn_up.weight": Tensor(8, [32, 2], bytes(68))}
    return [gguf_bytes(llama(), blocks), gguf_bytes({**llama(), **sentencepiece}, embedding())]


def indices() -> list[bytes]:
    """Indices of sharded weights."""
    return [json.dumps({"metadata": {"total_size": 40}, "weight_map": {"a": SHARD, "b": SHARD}}).encode()]


def _read_config(folder: Path) -> None:
    read_model_config(folder)
    check_model(folder)


def _simulate(folder: Path) -> None:
    simulated_model(str(folder))


def _read_generation_config(folder: Path) -> None:
    load_sampling_defaults(folder)
    check_text_files(folder)
    read_model_config(folder)


def _read_weights(folder: Path) -> None:
    file = SafetensorsFile(folder / WEIGHTS)
    size = (folder / WEIGHTS).stat().st_size
    try:
        for tensor in file.tensors.values():
            assert 0 <= tensor.begin <= tensor.begin + tensor.num_bytes <= size, tensor
            file.read_into(tensor.begin, memoryview(bytearray(tensor.num_bytes)))
        assert sum(tensor.num_bytes for tensor in file.tensors.values()) <= size
    finally:
        file.close()
    stored_dtype(folder)


def _read_gguf(folder: Path) -> None:
    path = folder / GGUF
    if is_gguf(path):
        read_model_config(path)
        check_model(path)
        check_text_files(path)
    GgufFile(path).close()


def _read_index(folder: Path) -> None:
    with Checkpoint.open(folder) as checkpoint:
        assert all(tensor.entry.num_bytes >= 0 for tensor in checkpoint)


# Name, what it may say, how it is changed, what reads it.
FILES: list[tuple[str, Callable[[], list[bytes]], Mutate, tuple[Callable[[Path], None], ...]]] = [
    ("config.json", configs, mutate_json, (_read_config, _simulate)),
    ("generation_config.json", generation_configs, mutate_json, (_read_generation_config,)),
    (WEIGHTS, weights, mutate_safetensors, (_read_weights,)),
    (INDEX, indices, mutate_json, (_read_index,)),
    (GGUF, gguf_files, mutate_raw, (_read_gguf,)),
]


def check_refusal(error: Exception, folder: Path) -> None:
    """A refusal names a file of the folder, and does not fill a log with what stands in it."""
    message = str(error)
    assert str(folder) in message, message[:500]
    message.encode()
    assert len(message) < 5000, f"{len(message)} characters: {message[:300]}"


class ModelFiles:
    """See the module."""

    what = "files"

    def __init__(self) -> None:
        self._corpora = [corpus() for _, corpus, _, _ in FILES]
        self._place = make_folder()
        self._folders = [Path(self._place.name) / str(number) for number in range(len(FILES))]
        for folder, (name, _, _, _) in zip(self._folders, FILES, strict=True):
            write_checkpoint(folder)
            (folder / "config.json").write_bytes(configs()[1])
            (folder / (SHARD if name == INDEX else WEIGHTS)).write_bytes(weights()[0])

    def draw(self, rng: Random) -> Case:
        number = int(rng.random() * len(FILES))
        corpus = self._corpora[number]
        return [self.mutate(rng, bytes((number,)) + corpus[int(rng.random() * len(corpus))])]

    def mutate(self, rng: Random, piece: bytes) -> bytes:
        number = piece[0] % len(FILES) if piece else 0
        return bytes((number,)) + FILES[number][2](rng, piece[1:], self._corpora[number])

    def run(self, case: Case) -> int:
        for piece in case:
            number = piece[0] % len(FILES) if piece else 0
            name, _, _, readers = FILES[number]
            (self._folders[number] / name).write_bytes(piece[1:])
            for read in readers:
                self._read(read, self._folders[number])
        return len(case)

    def _read(self, read: Callable[[Path], None], folder: Path) -> None:
        try:
            read(folder)
        except (ModelLoadError, ConfigError) as error:
            check_refusal(error, folder)

    def finish(self) -> str:
        return ""

    def close(self) -> None:
        self._place.cleanup()
