"""A model that cannot be served: one line, exit code 3, and nothing has been started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.errors import EXIT_CONFIG, EXIT_MODEL, ConfigError, ModelLoadError
from splitserve.engine_core.model_check import check_before_start
from tests.engine_core.checkpoint.test_model_config import LLAMA
from tests.engine_core.checkpoint.writing import entry, file_bytes

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 60.0
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

Damage = Callable[[Path], object]


def write_whole(path: Path) -> Path:
    """Write a model that passes, as far as anybody looks before a worker runs."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(LLAMA))
    (path / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    (path / WEIGHTS).write_bytes(file_bytes({"a": entry("F32", [1], 0, 4)}, bytes(4)))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_whole(tmp_path / "model")


def change_config(**changes: object) -> Damage:
    return lambda path: (path / "config.json").write_text(json.dumps({**LLAMA, **changes}))


def write(name: str, text: str) -> Damage:
    return lambda path: (path / name).write_text(text)


def remove(*names: str) -> Damage:
    def damage(path: Path) -> None:
        for name in names:
            (path / name).unlink()

    return damage


def instead(name: str, text: str = "") -> Damage:
    """Have one file and nothing else."""

    def damage(path: Path) -> None:
        shutil.rmtree(path)
        path.mkdir()
        if name:
            (path / name).write_text(text)

    return damage


def rename(old: str, new: str) -> Damage:
    return lambda path: (path / old).rename(path / new)


def cut(path: Path) -> None:
    (path / WEIGHTS).write_bytes((path / WEIGHTS).read_bytes()[:-1])


def lose_shard(path: Path) -> None:
    (path / WEIGHTS).unlink()
    (path / INDEX).write_text(json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}}))


def become_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("")


def nest(path: Path) -> None:
    path.rename(path.with_name("inner"))
    path.mkdir()
    path.with_name("inner").rename(path / "inner")


ADAPTER = '{"base_model_name_or_path": "owner/base"}'
FAULTS: dict[str, tuple[Damage, list[str]]] = {
    "no tokenizer": (
        remove("tokenizer.json"),
        ["tokenizer.json does not exist", "one of tokenizer.model"],
    ),
    "a sentencepiece tokenizer": (
        rename("tokenizer.json", "tokenizer.model"),
        ["tokenizer.model is not a SentencePiece model"],
    ),
    "a broken tokenizer": (write("tokenizer.json", '{"model": '), ["tokenizer.json", "truncated"]),
    "a tokenizer of nothing": (write("tokenizer.json", "[]"), ["tokenizer.json", "object"]),
    "a tokenizer pointer": (write("tokenizer.json", POINTER), ["tokenizer.json", "LFS", "git lfs pull"]),
    "a broken tokenizer config": (write("tokenizer_config.json", "{"), ["tokenizer_config.json"]),
    "a template pointer": (write("chat_template.jinja", POINTER), ["chat_template.jinja", "LFS"]),
    "no config": (remove("config.json"), ["config.json does not exist", WEIGHTS]),
    "a broken config": (write("config.json", "{"), ["config.json", "JSON"]),
    "a config pointer": (write("config.json", POINTER), ["config.json", "LFS", "git lfs pull"]),
    "an architecture": (change_config(architectures=["BloomModel"]), ["'BloomModel'", "Llama"]),
    "a field": (change_config(num_attention_heads=0), ["num_attention_heads", "from 1 to 4096", "got 0"]),
    "a method of quantization": (
        change_config(quantization_config={"quant_method": "bitsandbytes"}),
        ["quantization_config", "quant_method", "bitsandbytes", "gptq"],
    ),
    "broken generation config": (write("generation_config.json", "[]"), ["generation_config.json"]),
    "a sampling default": (write("generation_config.json", '{"top_p": 1.5}'), ["generation_config", "top_p"]),
    "no weights": (remove(WEIGHTS), ["no weights", WEIGHTS]),
    "pickles": (rename(WEIGHTS, "pytorch_model.bin"), ["pytorch_model.bin", "pickle", "safetensors"]),
    "a weights pointer": (write(WEIGHTS, POINTER), [WEIGHTS, "LFS", "git lfs pull"]),
    "truncated weights": (cut, [WEIGHTS, "truncated"]),
    "a missing shard": (lose_shard, ["model-00001-of-00002.safetensors", "missing"]),
    "a shard by itself": (rename(WEIGHTS, "model-00001-of-00002.safetensors"), ["not whole"]),
    "an empty directory": (instead(""), ["config.json does not exist", "empty"]),
    "GGUF": (instead("llama.Q4_K_M.gguf"), ["llama.Q4_K_M.gguf", "GGUF", "name the file"]),
    "an adapter": (instead("adapter_config.json", ADAPTER), ["adapter", "owner/base", "merge"]),
    "the authors' layout": (instead("params.json", "{}"), ["params.json", "Hugging Face layout"]),
    "another framework": (instead("tf_model.h5"), ["tf_model.h5", "another framework"]),
    "a file": (become_file, ["is a file, neither a directory"]),
    "a folder of models": (nest, ["config.json does not exist", "/model/inner"]),
}


def run(runtime: Path, module: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime), **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def serve(runtime: Path, model: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return run(runtime, "splitserve.engine_core.launcher.cli", "serve", str(model), "--port", "0", *flags)


def test_what_the_faults_start_from_has_none(model: Path) -> None:
    assert check_before_start(EngineConfig(model=str(model)), model) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_serve_names_the_fault_and_starts_nothing(fault: str, model: Path, tmp_path: Path) -> None:
    damage, words = FAULTS[fault]
    damage(model)
    done = serve(tmp_path, model)
    assert done.returncode == EXIT_MODEL
    [line] = done.stderr.splitlines()
    assert line.startswith("splitserve: error: ")
    assert str(model) in line
    for word in words:
        assert word in line
    assert len(line) < 1500
    assert done.stdout == ""


@pytest.mark.parametrize("fault", ["no tokenizer", "a field", "truncated weights"])
def test_an_engine_core_names_the_fault_and_starts_no_worker(fault: str, model: Path, tmp_path: Path) -> None:
    damage, words = FAULTS[fault]
    damage(model)
    listen = f"--listen=ipc://{tmp_path}/run/engine.sock"
    done = run(tmp_path, "splitserve.engine_core.cli", f"--model={model}", listen)
    assert done.returncode == EXIT_MODEL
    [line] = done.stderr.splitlines()
    assert line.startswith("engine-core: error: ")
    assert words[0] in line
    assert not (tmp_path / "run").exists()


def test_a_context_that_the_model_has_not_is_refused_before_anything_starts(
    model: Path, tmp_path: Path
) -> None:
    done = serve(tmp_path, model, "--max-model-len", "513")
    assert done.returncode == EXIT_CONFIG
    [line] = done.stderr.splitlines()
    assert "--max-model-len 513" in line
    assert "512" in line


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"quantization": "int8", "dtype": "float32"},
            "--quantization int8 needs bfloat16 .* runs in float32",
        ),
        (
            {
                "speculate": "mtp",
                "speculative_config": '{"quantization": "int4"}',
                "model_impl": "transformers",
            },
            "--speculate works with the server's own layers, .* has those of transformers",
        ),
        (
            {
                "speculate": "draft",
                "speculative_model": "MODEL",
                "speculative_config": '{"quantization": "int4"}',
                "dtype": "float32",
            },
            "--speculative-config: quantization int4 needs bfloat16",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_starts(
    settings: dict[str, str], problem: str, model: Path
) -> None:
    settings = {name: value.replace("MODEL", str(model)) for name, value in settings.items()}
    with pytest.raises(ConfigError, match=problem):
        check_before_start(EngineConfig(model=str(model), **settings), model)  # type: ignore[arg-type]


def test_the_files_of_a_draft_model_are_looked_at_too(model: Path, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(model, draft)
    config = EngineConfig(model=str(model), speculate="draft", speculative_model=str(draft))
    assert check_before_start(config, model) == []
    for weights in draft.glob("*.safetensors"):
        weights.unlink()
    with pytest.raises(ModelLoadError, match=str(draft)):
        check_before_start(config, model)


def test_the_tokenizer_may_lie_in_another_directory_where_it_is_checked(model: Path, tmp_path: Path) -> None:
    (model / "tokenizer.json").unlink()
    (tmp_path / "assets").mkdir()
    done = serve(tmp_path, model, "--assets-dir", str(tmp_path / "assets"))
    assert done.returncode == EXIT_MODEL
    assert f"{tmp_path}/assets/tokenizer.json does not exist" in done.stderr
    config = EngineConfig(model=str(model), tokenizer_check=False)
    assert check_before_start(config, model) == []


def test_custom_code_is_worth_a_note(model: Path) -> None:
    change_config(auto_map={"AutoModelForCausalLM": "modeling.Model"})(model)
    [note] = check_before_start(EngineConfig(model=str(model)), model)
    assert "custom_code_ignored" in note


def test_an_end_token_that_the_vocabulary_does_not_have_is_worth_a_note(model: Path) -> None:
    change_config(eos_token_id=50256)(model)
    [note] = check_before_start(EngineConfig(model=str(model)), model)
    assert "eos_token_ignored" in note
    assert "[50256]" in note


def test_a_hub_id_that_cannot_be_fetched_is_told_once_and_not_retried(tmp_path: Path) -> None:
    flags = ("serve", "owner/name", "--port", "0")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = run(tmp_path, "splitserve.engine_core.launcher.cli", *flags, **offline)
    assert done.returncode == EXIT_MODEL
    assert done.stderr.count("engine-core: error: model 'owner/name' is not in the local cache") == 1
    assert done.stderr.count("starting engine-core") == 1


def test_a_fault_of_a_hub_id_is_found_before_its_worker_starts(model: Path, tmp_path: Path) -> None:
    (model / "tokenizer.json").rename(model / "vocab.json.old")
    cached = tmp_path / "hub" / "models--owner--name"
    (cached / "snapshots").mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    model.rename(cached / "snapshots" / "abc")
    listen = f"--listen=ipc://{tmp_path}/run/engine.sock"
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = run(tmp_path, "splitserve.engine_core.cli", "--model=owner/name", listen, **offline)
    assert done.returncode == EXIT_MODEL
    assert "tokenizer.json does not exist" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists()
