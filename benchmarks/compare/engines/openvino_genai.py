"""How is OpenVINO GenAI installed, given a model in its own format, and run offline?"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.engines.base import (
    KV_CACHE_BYTES,
    MAX_NUM_SEQS,
    ONEDNN_AVX2,
    Engine,
    Generator,
    pip_missing,
)
from benchmarks.compare.venvs import TORCH, make_venv, run_logged

PACKAGES = ["openvino-genai==2026.4.1.0", "optimum-intel[openvino]==2.2.0", TORCH]


def converted(model: Path) -> Path:
    """Return the folder of a model in OpenVINO's format."""
    return model / "openvino-fp16"


class OpenVinoGenAi(Engine):
    """OpenVINO GenAI's continuous batching on the CPU, weights in fp16; it has no server of its own."""

    name = "openvino-fp16"
    venv = "openvino"
    needs = "OpenVINO GenAI, and optimum-intel with torch to convert models, from wheels, 2.5 GB"
    has_server = False

    def install(self, root: Path, log: Path) -> None:
        """Install the wheels."""
        make_venv(self.folder(root), PACKAGES, log, os.environ)

    def prepare(self, root: Path, model: Path, log: Path) -> None:
        """Convert the model; the folder takes its name once it is complete."""
        target = converted(model)
        if target.exists():
            return
        part = target.with_suffix(".part")
        export = [str(self.folder(root) / "bin" / "optimum-cli"), "export", "openvino", "--model", str(model)]
        export += ["--task", "text-generation-with-past", "--weight-format", "fp16", str(part)]
        run_logged(export, log, {**os.environ, "HF_HUB_OFFLINE": "1"})
        part.rename(target)

    def missing(self, root: Path, model: Path) -> str:
        """Return whether it is not installed, or the model not converted."""
        how = f"python -m benchmarks.compare setup {root} --peers {self.venv}"
        lacking = "" if converted(model).exists() else f"{converted(model)} does not exist: {how}"
        return pip_missing(self, root) or lacking

    def held_environment(self, root: Path) -> Mapping[str, str]:
        """Tell its own kernels and oneDNN's, which have to be told the same.

        Float32 weights would be multiplied by MLAS, which cannot be told; those of fp16 are by oneDNN.
        """
        return {"OV_CPU_MAX_ISA": ONEDNN_AVX2, "ONEDNN_MAX_CPU_ISA": ONEDNN_AVX2}

    def load(self, model: Path) -> Generator:
        """Load the converted model into a pipeline that batches continuously."""
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = KV_CACHE_BYTES >> 30
        scheduler.max_num_seqs = MAX_NUM_SEQS
        return _Offline(openvino_genai.ContinuousBatchingPipeline(str(converted(model)), scheduler, "CPU"))


class _Offline:
    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline

    def generate(self, prompts: Sequence[list[int]], num_new: int) -> list[int]:
        import numpy as np
        import openvino
        import openvino_genai

        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = num_new, True, False
        inputs = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        outputs = self._pipeline.generate(inputs, [config] * len(prompts))
        return [len(output.m_generation_ids[0]) for output in outputs]

    def instructions(self) -> str:
        import openvino

        return ", ".join(openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
