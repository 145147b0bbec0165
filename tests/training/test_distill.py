"""Does a student learn to say what its teacher says?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from training.distill import Options, loss_of, parse_options, student_config
from training.packing import Row, pack

FOLDER = Path(__file__).parents[2] / "engine_core" / "demo_model"


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    words = ["distill", "--hidden-size", "64", "--layers", "1", "--batch", "1", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    return parse_options()


def rows() -> list[Row]:
    text = "<|im_start|>user\nhow old are owls<|im_end|>\n<|im_start|>assistant\nOld.<|im_end|>\n"
    return list(pack([text] * 3, Tokenizer.from_file(str(FOLDER / "tokenizer.json"))))[:1]


def test_who_says_the_same_as_the_teacher_has_nothing_to_learn(options: Options) -> None:
    torch.manual_seed(0)
    student = LlamaForCausalLM(student_config(options))
    other = LlamaForCausalLM(student_config(options))
    assert loss_of(student, student, rows()).item() == pytest.approx(0, abs=1e-6)
    assert loss_of(student, other, rows()).item() > 1e-3


def test_a_student_has_the_width_asked_for_and_all_tokens(options: Options) -> None:
    config = student_config(options)
    assert (config.hidden_size, config.num_attention_heads, config.num_key_value_heads) == (64, 2, 1)
    assert (config.num_hidden_layers, config.intermediate_size, config.vocab_size) == (1, 176, 2048)
