"""Does a run begin with the weights and the tokenizer that it was told to begin with?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from training.train import Options, make_model, make_tokenizer, parse_options

FOLDER = Path(__file__).parents[2] / "engine_core" / "demo_model"


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Return what the command line makes of --start."""
    words = ["train", "--start", str(FOLDER), "--out", str(tmp_path), "--scratch", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    return parse_options()


def test_a_run_may_begin_with_the_weights_of_a_checkpoint(options: Options) -> None:
    found = make_model(options).state_dict()
    expected = LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}


def test_it_takes_over_the_tokenizer_with_the_marks_and_keeps_it(options: Options) -> None:
    tokenizer = make_tokenizer(options)
    older = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == older.get_vocab_size()
    text = "What is the weather in Paris?"
    assert tokenizer.encode(text).ids == older.encode(text).ids
    assert tokenizer.token_to_id("</think>") is not None
    kept = Tokenizer.from_file(str(options.scratch / "tokenizer.json"))
    assert kept.get_vocab() == tokenizer.get_vocab()
