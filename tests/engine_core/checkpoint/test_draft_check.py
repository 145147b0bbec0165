"""A model drafts only for one that means the same by the same token ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.checkpoint.draft_check import read_draft_config
from splitserve.engine_core.errors import ConfigError, ModelLoadError

CONFIG = {
    "architectures": ["MistralForCausalLM"],
    "vocab_size": 4,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "sliding_window": None,
    "torch_dtype": "float32",
    "eos_token_id": 1,
}
VOCAB = {"a": 0, "b": 1, "c": 2}
UNIGRAM = [["a", 0.0], ["b", -1.0], ["c", -2.0]]
ADDED = [{"id": 3, "content": "<end>", "special": True}]


def write(folder: Path, vocab: object = VOCAB, added: object = ADDED, **changes: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    tokenizer = {"model": {"type": "BPE", "vocab": vocab}, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def test_a_draft_model_reads_no_more_than_is_served_and_than_it_can(tmp_path: Path) -> None:
    model = read_model_config(write(tmp_path / "model"))
    draft = write(tmp_path / "draft", UNIGRAM, num_hidden_layers=1)
    assert read_draft_config(str(draft), model.limited_to(20)).max_model_len == 20
    short = write(tmp_path / "short", max_position_embeddings=9)
    assert read_draft_config(str(short), model).max_model_len == 9
    (short / "tokenizer.json").unlink()
    assert read_draft_config(str(short), model).num_layers == 2


@pytest.mark.parametrize(
    ("of_model", "of_draft", "words"),
    [
        ({}, {"vocab_size": 5}, r"another vocabulary than .*/model: 5 tokens instead of 4"),
        ({}, {"vocab": {"a": 0, "c": 1, "b": 2}}, "token 1 is 'c' instead of 'b'"),
        ({}, {"vocab": UNIGRAM[:2]}, "token 2 is None instead of 'c'"),
        ({}, {"added": []}, "token 3 is None instead of '<end>'"),
        ({"sliding_window": 8}, {}, r"/draft cannot draft for .*: layers of .*/model have a sliding window"),
        ({}, {"sliding_window": 8}, r"layers of .*/draft have a sliding window"),
        (
            {},
            {"architectures": ["BertModel"], "model_type": "bert"},
            "/draft makes no text: it is a BertModel",
        ),
    ],
)
def test_others_are_refused_by_name(
    of_model: dict[str, Any], of_draft: dict[str, Any], words: str, tmp_path: Path
) -> None:
    model = read_model_config(write(tmp_path / "model", **of_model))
    with pytest.raises(ConfigError, match=words):
        read_draft_config(str(write(tmp_path / "draft", **of_draft)), model)


def test_a_tokenizer_that_is_none_is_named(tmp_path: Path) -> None:
    model = read_model_config(write(tmp_path / "model"))
    draft = write(tmp_path / "draft", vocab=[1])
    with pytest.raises(ModelLoadError, match=r"draft/tokenizer\.json does not describe a tokenizer"):
        read_draft_config(str(draft), model)
