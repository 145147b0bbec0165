"""Decoders that judge documents by answering yes or no, as Qwen3-Reranker is published."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from splitserve import LLM
from splitserve.engine_core.errors import ContextLengthError, InvalidRequestError, ModelLoadError
from splitserve.frontend.text.chat.known_templates import RERANKER, TEMPLATES
from tests.checkpoints import VOCAB_SIZE, CheckpointCache, CheckpointSpec, load_reference

pytestmark = pytest.mark.system

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
QUERY = "how are you"
DOCUMENTS = ["fine", "Yes, no? yes", "<|im_end|> the fox <think>", "a b c " * 9]
# As the model's card has them.
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
SPECIAL = ["<|im_start|>", "<|im_end|>"]


def write_files(folder: Path) -> None:
    """A byte-level tokenizer in which yes and no are tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - 2,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["yes", "no"] * 50 + [PREFIX], trainer)
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def tokens_of(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def prompts(folder: Path, documents: Sequence[str], instruction: str = INSTRUCTION) -> list[list[int]]:
    """Prompts as the card makes them, but that texts hold no control tokens."""
    tokenizer, ids = tokens_of(folder), []
    for document in documents:
        body = f"<Instruct>: {instruction}\n<Query>: {QUERY}\n<Document>: {document}"
        plain = Tokenizer.from_str(tokenizer.to_str().replace("<|im_end|>", "<|xx_end|>"))
        plain.encode_special_tokens = True
        # Without added tokens, which the texts must not hold.
        description = json.loads(plain.to_str())
        description["added_tokens"] = []
        letters = Tokenizer.from_str(json.dumps(description))
        ids.append(tokenizer.encode(PREFIX).ids + letters.encode(body).ids + tokenizer.encode(SUFFIX).ids)
    return ids


def scores(folder: Path, many: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
    """The probability of yes against no behind each prompt, by transformers."""
    model, tokenizer = load_reference(folder, torch.float32), tokens_of(folder)
    pair = [tokenizer.token_to_id("no"), tokenizer.token_to_id("yes")]
    found = []
    with torch.inference_mode():
        for ids in many:
            logits = model(torch.tensor([list(ids)])).logits[0, -1, pair].double()
            found.append(float(logits.softmax(dim=0)[1]))
    return np.array(found)


def start(folder: Path, **settings: Any) -> LLM:
    fixed = {"dtype": "float32", "num_threads": 1, "max_num_seqs": 4, "num_blocks": 128}
    return LLM(str(folder), use_tqdm=False, **{**fixed, **settings})


@pytest.fixture(scope="module")
def judge(checkpoints: CheckpointCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judge") / "model"
    shutil.copytree(checkpoints.get(CheckpointSpec("qwen3")), folder)
    write_files(folder)
    return folder


@pytest.fixture(scope="module")
def llm(judge: Path) -> Iterator[LLM]:
    # Prompts of several steps, and beginnings that others have computed.
    with start(judge, task="score", max_num_batched_tokens=64) as llm:
        yield llm


def test_scores_and_prompts_are_those_of_the_card(llm: LLM, judge: Path) -> None:
    expected = prompts(judge, DOCUMENTS)
    outputs = llm.score(QUERY, DOCUMENTS, use_tqdm=False)
    assert [each.prompt_token_ids for each in outputs] == expected
    ours = [each.outputs.score for each in outputs]
    np.testing.assert_allclose(ours, scores(judge, expected), atol=1e-5)
    again = llm.score(QUERY, DOCUMENTS, use_tqdm=False)
    assert again[0].num_cached_tokens > 0
    assert [each.outputs.score for each in again] == ours
    ranked = llm.rerank(QUERY, DOCUMENTS, use_tqdm=False)
    assert [each.relevance_score for each in ranked] == sorted(ours, reverse=True)


def test_a_client_may_say_what_to_judge_by(llm: LLM, judge: Path) -> None:
    (output,) = llm.score(QUERY, "fine", instruction="Find answers", use_tqdm=False)
    expected = prompts(judge, ["fine"], "Find answers")
    assert [output.prompt_token_ids] == expected
    np.testing.assert_allclose(output.outputs.score, scores(judge, expected)[0], atol=1e-5)


def test_only_the_document_is_cut(llm: LLM, judge: Path) -> None:
    (whole,) = prompts(judge, ["z" * 60])
    document = tokens_of(judge).encode("zz").ids[0]
    # Behind the space before it, which is a token here.
    begin = whole.index(document)
    size = len(whole) - 20
    for side, text in (("right", "z" * 60 + "y"), ("left", "y" + "z" * 60)):
        (output,) = llm.score(
            QUERY,
            text,
            use_tqdm=False,
            tokenization_kwargs=cast(Any, {"truncate_prompt_tokens": size, "truncation_side": side}),
        )
        cut = output.prompt_token_ids
        assert len(cut) == size
        assert cut[: begin - 1] == whole[: begin - 1]
        assert cut[-30:] == whole[-30:]
        assert set(cut[begin : begin + 20]) == {document}
    with pytest.raises(ContextLengthError):
        llm.score(QUERY, "z", use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": 50})
    with pytest.raises(ContextLengthError):
        llm.score(QUERY, "z" * 600, use_tqdm=False)


def test_it_does_nothing_else(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="scores or classifies texts"):
        llm.generate("a", use_tqdm=False)
    (output,) = llm.classify("a", use_tqdm=False)
    assert output.outputs.label == "yes"


def test_a_checkpoint_may_say_so_with_a_template_of_its_own(judge: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(judge, folder)
    kinds = {
        "": "base.modules.transformer.Transformer",
        "1_LogitScore": "cross_encoder.modules.logit_score.LogitScore",
    }
    listed = [{"path": path, "type": f"sentence_transformers.{kind}"} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_LogitScore").mkdir()
    answers = {"true_token_id": 40, "false_token_id": 41}
    (folder / "1_LogitScore" / "config.json").write_text(json.dumps(answers))
    activation = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(activation))
    template = (
        "{% for m in messages %}{% if m.role in ('query', 'document') %}[{{ m.content }}]{% endif %}"
        "{% endfor %}"
    )
    (folder / "chat_template.jinja").write_text(template)
    with start(folder, tensor_parallel_size=2) as llm:
        (output,) = llm.score("a", "b", use_tqdm=False)
    ids = tokens_of(folder).encode("[a][b]").ids
    assert output.prompt_token_ids == ids
    with torch.inference_mode():
        logits = load_reference(folder, torch.float32)(torch.tensor([ids])).logits[0, -1].double()
    np.testing.assert_allclose(output.outputs.score, float(logits[40] - logits[41]), rtol=1e-4)


def test_other_models_judge_nothing(checkpoints: CheckpointCache) -> None:
    with pytest.raises(ModelLoadError, match="--task score needs 'yes' and 'no' to be tokens"):
        start(checkpoints.get(CheckpointSpec("qwen3")), task="score")


def test_its_template_takes_pairs() -> None:
    from splitserve.frontend.text.chat.pair_template import takes_pairs

    assert [name for name, source in TEMPLATES.items() if takes_pairs(source)] == [RERANKER]
