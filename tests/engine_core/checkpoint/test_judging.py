"""Which checkpoints judge by an answer, and what of them is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.judging import Judge, read_judge
from splitserve.engine_core.errors import ModelLoadError

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 331,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
    "eos_token_id": 1,
}
ANSWERS = {"true_token_id": 5, "false_token_id": 6}


def model(folder: Path) -> ModelConfig:
    write(folder, "config.json", CONFIG)
    return read_model_config(folder)


def write(folder: Path, name: str, value: object) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(value))


def name_modules(folder: Path, answers: object = ANSWERS) -> None:
    kinds = {"": "base.modules.transformer.Transformer", "1_LogitScore": "x.logit_score.LogitScore"}
    listed = [{"path": path, "type": f"sentence_transformers.{kind}"} for path, kind in kinds.items()]
    write(folder, "modules.json", listed)
    write(folder, "1_LogitScore/config.json", answers)


def test_its_modules_say_so(tmp_path: Path) -> None:
    config = model(tmp_path)
    assert read_judge(config, "auto") is None
    name_modules(tmp_path)
    assert read_judge(config, "auto") == read_judge(config, "score") == Judge(5, 6)
    assert read_judge(config, "embed") is None
    assert read_judge(config, "generate") is None
    write(tmp_path, "sentence_bert_config.json", {"max_seq_length": 40})
    write(
        tmp_path, "config_sentence_transformers.json", {"activation_fn": "torch.nn.modules.linear.Identity"}
    )
    assert read_judge(config, "auto") == Judge(5, 6, 40, "identity")


def test_without_them_the_task_does(tmp_path: Path) -> None:
    config = model(tmp_path)
    write(tmp_path, "tokenizer.json", {"model": {"vocab": {"no": 3, "yes": 4}}})
    assert read_judge(config, "score") == Judge(4, 3)
    with pytest.raises(ModelLoadError, match="answers nothing it could score by"):
        read_judge(config, "score", is_bare=True)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"true_token_id": 5, "false_token_id": None}, "false_token_id"),
        ({"true_token_id": -1, "false_token_id": 5}, "true_token_id"),
        ({"true_token_id": 10**6, "false_token_id": 5}, "beyond vocab_size"),
        (ANSWERS | {"module_input_name": "x"}, "module_input_name"),
    ],
    ids=str,
)
def test_wrong_answers_are_refused(tmp_path: Path, answers: object, words: str) -> None:
    config = model(tmp_path)
    name_modules(tmp_path, answers)
    with pytest.raises(ModelLoadError, match=words):
        read_judge(config, "auto")


def test_other_activations_are_refused(tmp_path: Path) -> None:
    config = model(tmp_path)
    name_modules(tmp_path)
    write(tmp_path, "config_sentence_transformers.json", {"activation_fn": "torch.nn.ReLU"})
    with pytest.raises(ModelLoadError, match="activation_fn must be one of"):
        read_judge(config, "auto")


@pytest.mark.parametrize("vocab", [{"yes": 1}, {"yes": 1, "no": "x"}, [["yes", 0.0], ["no", 0.0]], None])
def test_a_tokenizer_without_the_answers_is_refused(tmp_path: Path, vocab: object) -> None:
    config = msgspec.structs.replace(model(tmp_path), vocab_size=100)
    write(tmp_path, "tokenizer.json", {"model": {"vocab": vocab}})
    with pytest.raises(ModelLoadError, match="--task score needs 'yes' and 'no' to be tokens"):
        read_judge(config, "score")
