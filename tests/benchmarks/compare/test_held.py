"""Engines held to an instruction set: by their environment, or left out with a reason."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from benchmarks.compare.engines import ENGINES
from benchmarks.compare.engines.llama_cpp import LlamaCpp
from benchmarks.compare.held import environment_of, why_not_held
from benchmarks.compare.results import Results
from benchmarks.compare.run import Plan, Run
from benchmarks.compare.table import report

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="AVX2 is of x86")


def test_variables_that_hold_an_engine_come_to_those_it_always_needs(tmp_path: Path) -> None:
    engine = ENGINES["transformers"]
    free, held = environment_of(engine, tmp_path), environment_of(engine, tmp_path, "avx2")
    assert free == engine.environment(tmp_path)
    assert free.items() < held.items()
    assert held["ATEN_CPU_CAPABILITY"] == "avx2"
    assert held["ONEDNN_MAX_CPU_ISA"] in ("AVX2", "AVX2_VNNI")


def test_an_engine_that_cannot_be_told_is_left_out(tmp_path: Path) -> None:
    assert "cannot be held to avx2" in why_not_held(ENGINES["vllm"], tmp_path, "avx2")
    assert why_not_held(ENGINES["vllm"], tmp_path, "") == ""
    assert why_not_held(ENGINES["splitserve"], tmp_path, "avx2") == ""


def test_kernels_that_are_not_built_are_asked_for(tmp_path: Path) -> None:
    """The loader would only warn, and the engine run with all the processor has."""
    engine = ENGINES["llamacpp-q8_0"]
    assert f"setup {tmp_path} --peers llamacpp" in why_not_held(engine, tmp_path, "avx2")
    library = Path(environment_of(engine, tmp_path, "avx2")["LD_PRELOAD"])
    library.parent.mkdir(parents=True)
    library.touch()
    assert why_not_held(engine, tmp_path, "avx2") == ""


def test_llama_cpp_is_built_for_the_processor_and_its_kernels_for_avx2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    module = "benchmarks.compare.engines.llama_cpp"
    monkeypatch.setattr(f"{module}.run_logged", lambda words, log: ran.append(list(words)))
    monkeypatch.setattr(f"{module}.make_venv", lambda *_: True)
    monkeypatch.setattr(LlamaCpp, "_source", lambda self, root, log: root / "source")
    engine = LlamaCpp("q8_0")
    engine.install(tmp_path, tmp_path / "log")
    assert ["-DGGML_NATIVE=ON" in words for words in ran] == [True, False, False, False]
    assert ["-DGGML_NATIVE=OFF" in words for words in ran] == [False, False, True, False]
    assert [words[words.index("--target") + 1] for words in ran if "--target" in words] == [
        "llama-server",
        "ggml-cpu",
    ]
    for made in (engine._held_kernels(tmp_path), engine._build(tmp_path) / "bin" / "llama-server"):
        made.parent.mkdir(parents=True)
        made.touch()
    engine.install(tmp_path, tmp_path / "log")
    assert len(ran) == 4


def test_who_cannot_be_held_takes_no_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(ENGINES["vllm"]), "missing", lambda self, root, model: "")
    plan = Plan(tmp_path, [], [], ["splitserve", "vllm"], 1, tmp_path / "out.json", "avx2")
    measurement = Run(plan, seed=1)
    assert [engine.name for engine in measurement._present(tmp_path)] == ["splitserve"]
    assert "cannot be held" in measurement.results.absent["vllm"]


def test_the_tables_say_what_engines_say_of_themselves() -> None:
    assert "instructions of a: AVX2 = 1" in report(Results(instructions={"a": "AVX2 = 1"}))
