"""A GGUF file is served like the checkpoint that it was made from: tokenizer, template, grammars, weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitserve import LLM, SamplingParams
from splitserve.engine_core.checkpoint.source import DEMO_MODEL
from splitserve.engine_core.structured_outputs import StructuredOutputs
from tests.worker.weights.gguf_models import as_blocks, write_gguf

pytestmark = [pytest.mark.system, pytest.mark.slow]
QUESTIONS = ["What is the capital of France?", "What is 12 plus 30?"]


def answers(model: str) -> list[tuple[list[int], str]]:
    plain = SamplingParams(temperature=0.0, max_tokens=24)
    number = SamplingParams(temperature=0.0, structured_outputs=StructuredOutputs(regex="[0-9]{2}"))
    with LLM(model, use_tqdm=False, num_threads=1) as llm:
        outputs = [
            llm.chat([{"role": "user", "content": question}], params)[0]
            for question in QUESTIONS
            for params in (plain, number)
        ]
        return [(output.prompt_token_ids, output.outputs[0].text) for output in outputs]


def test_the_demo_model_in_a_gguf_file_gives_the_same_answers(tmp_path: Path) -> None:
    path = tmp_path / "demo.gguf"
    write_gguf(DEMO_MODEL, path, as_blocks("BF16"), **{"tokenizer.ggml.pre": "smollm"})
    assert answers(str(path)) == answers("")
