"""LLM.classify, score, rerank and encode: numbers equal those of transformers with the same templates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch

from splitserve import LLM
from splitserve.engine_core.errors import ContextLengthError, InvalidRequestError, ModelLoadError
from tests.checkpoints import CheckpointSpec, make_reference, write_tokenizer
from tests.embeddings import cosines
from tests.encoders import MAX_LEN, add_modules, make_encoder, pooled, reference_states

pytestmark = pytest.mark.system

QUERY = "how are you"
DOCUMENTS = ["the quick fox", "hello there today", "dog", "one two three " * 9]
IDENTITY = "torch.nn.modules.linear.Identity"
PROMPTS = [[7], [7, 8, 9], [20] * 17, list(range(4, 60))]


def start(folder: Path, **settings: Any) -> LLM:
    fixed = {"dtype": "float32", "num_threads": 1, "max_num_seqs": 4, "max_num_batched_tokens": 64}
    return LLM(str(folder), use_tqdm=False, **{**fixed, **settings})


def logits(
    folder: Path, prompts: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
) -> npt.NDArray[np.float64]:
    """What transformers computes, float64 [n, labels]."""
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32
    ).eval()
    found = []
    with torch.inference_mode():
        for i, prompt in enumerate(prompts):
            named = {} if types is None else {"token_type_ids": torch.tensor([list(types[i])])}
            found.append(model(torch.tensor([list(prompt)]), **named).logits[0].double().numpy())
    return np.array(found)


def pairs(
    folder: Path, first: Sequence[str], second: Sequence[str]
) -> tuple[list[list[int]], list[list[int]]]:
    """Ids and token types of pairs, by the tokenizers library alone."""
    from tokenizers import Tokenizer

    encodings = Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch(
        list(zip(first, second, strict=True))
    )
    return [each.ids for each in encodings], [each.type_ids for each in encodings]


def sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 1 / (1 + np.exp(-x))


@pytest.fixture(scope="module", params=["bert", "roberta", "xlm-roberta", "modernbert"])
def scorer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scorer") / "model"
    return make_encoder(folder, request.param, {"num_labels": 1}, head="ForSequenceClassification")


@pytest.fixture(scope="module")
def llm(scorer: Path) -> Iterator[LLM]:
    with start(scorer) as llm:
        yield llm


def test_scores_are_those_of_both_texts_read_at_once(llm: LLM, scorer: Path) -> None:
    outputs = llm.score(QUERY, DOCUMENTS, use_tqdm=False)
    ids, types = pairs(scorer, [QUERY] * len(DOCUMENTS), DOCUMENTS)
    assert [each.prompt_token_ids for each in outputs] == ids
    tells_apart = json.loads((scorer / "config.json").read_text())["model_type"] == "bert"
    assert (max(max(each) for each in types) == 1) == tells_apart
    expected = sigmoid(logits(scorer, ids, types if tells_apart else None)[:, 0])
    np.testing.assert_allclose([each.outputs.score for each in outputs], expected, atol=1e-5)
    alone = [llm.score(QUERY, text, use_tqdm=False)[0].outputs.score for text in DOCUMENTS]
    assert alone == [each.outputs.score for each in outputs]


def test_documents_are_ordered_by_their_scores(llm: LLM) -> None:
    scores = [each.outputs.score for each in llm.score(QUERY, DOCUMENTS, use_tqdm=False)]
    ranked = llm.rerank(QUERY, DOCUMENTS, use_tqdm=False)
    assert [each.relevance_score for each in ranked] == sorted(scores, reverse=True)
    assert [(scores[each.index], DOCUMENTS[each.index]) for each in ranked] == [
        (each.relevance_score, each.document) for each in ranked
    ]
    assert llm.rerank(QUERY, DOCUMENTS, top_n=2, use_tqdm=False) == ranked[:2]


def test_lists_are_scored_pair_by_pair(llm: LLM) -> None:
    swapped = llm.score(DOCUMENTS[:2], DOCUMENTS[1::-1], use_tqdm=False)
    one_by_one = [llm.score(DOCUMENTS[i], DOCUMENTS[1 - i], use_tqdm=False)[0] for i in range(2)]
    assert [each.outputs for each in swapped] == [each.outputs for each in one_by_one]


def test_a_single_label_has_a_probability(llm: LLM, scorer: Path) -> None:
    outputs = llm.classify(PROMPTS, use_tqdm=False)
    expected = sigmoid(logits(scorer, PROMPTS))
    np.testing.assert_allclose([each.outputs.probs for each in outputs], expected, atol=1e-5)
    assert {each.outputs.label for each in outputs} == {"LABEL_0"}
    assert outputs[0].outputs.num_classes == 1


def test_pairs_too_long_are_refused_or_cut_where_they_are_longer(llm: LLM) -> None:
    long = "fox " * 200
    with pytest.raises(ContextLengthError):
        llm.score(QUERY, long, use_tqdm=False)
    cut = {"truncate_prompt_tokens": 20}
    tokenizer = llm.get_tokenizer()

    def words(first: str, second: str, **more: Any) -> list[str | None]:
        (output,) = llm.score(first, second, use_tqdm=False, tokenization_kwargs=cast(Any, {**cut, **more}))
        assert len(output.prompt_token_ids) == 20
        return [tokenizer.token_name(i) for i in output.prompt_token_ids if i > 3]

    assert words("one two three", long)[:3] == ["one", "two", "three"]
    room = len(words("one two three", long))
    assert words(long, "one two three") == ["fox"] * (room - 3) + ["one", "two", "three"]
    both = words("dog " * 99, long)
    assert both == ["dog"] * (room // 2) + ["fox"] * (room - room // 2)
    assert words("dog", "one " * 50 + "two", truncation_side="left")[-1] == "two"


def test_it_does_nothing_else(llm: LLM, scorer: Path) -> None:
    for call in (llm.embed, llm.generate):
        with pytest.raises(InvalidRequestError, match="scores or classifies texts"):
            call("a", use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="as many as data_2, got 2 and 3"):
        llm.score(["a", "b"], ["a", "b", "c"], use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="data_2 must be a text or a list of texts"):
        llm.score("a", cast(Any, [3]), use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="documents must be a text or a list of texts"):
        llm.rerank("a", [], use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="top_n must be an integer of at least 1, got 0"):
        llm.rerank("a", ["b"], top_n=0, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="pooling_task must be 'embed', 'classify', 'token_"):
        llm.encode("a", pooling_task=cast(Any, "score"), use_tqdm=False)
    for task in ("embed", "generate"):
        with pytest.raises(ModelLoadError, match="a head for labels: --task must be auto"):
            start(scorer, task=task)


def test_labels_have_names_and_probabilities_that_add_up(tmp_path: Path) -> None:
    names = {0: "bad", 1: "fair", 2: "good"}
    settings = {"id2label": names, "label2id": {name: i for i, name in names.items()}}
    folder = make_encoder(tmp_path / "model", "bert", settings, head="ForSequenceClassification")
    expected = torch.from_numpy(logits(folder, PROMPTS)).softmax(dim=1).numpy()
    with start(folder) as llm:
        outputs = llm.classify(PROMPTS, use_tqdm=False)
        encoded = llm.encode(PROMPTS, use_tqdm=False)
        with pytest.raises(InvalidRequestError, match="has 3 labels, and a score is of one; use /classify"):
            llm.score("a", "b", use_tqdm=False)
    np.testing.assert_allclose([each.outputs.probs for each in outputs], expected, atol=1e-5)
    assert [each.outputs.label for each in outputs] == [names[i] for i in expected.argmax(axis=1)]
    np.testing.assert_array_equal(
        [each.outputs.data for each in encoded],
        np.array([each.outputs.probs for each in outputs], np.float32),
    )


@pytest.mark.parametrize(
    ("settings", "function"),
    [
        (
            {"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
            "score",
        ),
        (
            {"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
            "score",
        ),
        ({"num_labels": 3, "problem_type": "regression"}, "classify"),
    ],
)
def test_a_checkpoint_may_want_the_numbers_themselves(
    settings: dict[str, object], function: str, tmp_path: Path
) -> None:
    folder = make_encoder(tmp_path / "model", "roberta", settings, head="ForSequenceClassification")
    ids, _ = pairs(folder, [QUERY], [DOCUMENTS[0]])
    with start(folder) as llm:
        if function == "score":
            (output,) = llm.score(QUERY, DOCUMENTS[0], use_tqdm=False)
            ours = [output.outputs.score]
        else:
            ours = llm.classify(ids, use_tqdm=False)[0].outputs.probs
    np.testing.assert_allclose(ours, logits(folder, ids)[0], atol=1e-4)


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_decoders_read_the_last_token(architecture: str, tmp_path: Path) -> None:
    import transformers

    base = make_reference(CheckpointSpec(architecture))
    name = type(base).__name__.replace("ForCausalLM", "ForSequenceClassification")
    config = base.config
    config.num_labels, config.pad_token_id = 1, 0
    torch.manual_seed(1)
    model = getattr(transformers, name)(config)
    model.model.load_state_dict(base.model.state_dict())
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    # Several chunks, and prefixes that others have computed.
    with start(tmp_path, max_num_batched_tokens=16, num_blocks=64) as llm:
        ours = llm.classify(PROMPTS * 2, use_tqdm=False)
        scored = llm.score(QUERY, DOCUMENTS[:2], use_tqdm=False)
    probs = [each.outputs.probs for each in ours]
    np.testing.assert_allclose(probs[:4], sigmoid(logits(tmp_path, PROMPTS)), atol=1e-5)
    assert probs[:4] == probs[4:]
    ids, _ = pairs(tmp_path, [QUERY] * 2, DOCUMENTS[:2])
    assert [each.prompt_token_ids for each in scored] == ids
    expected = sigmoid(logits(tmp_path, ids)[:, 0])
    np.testing.assert_allclose([each.outputs.score for each in scored], expected, atol=1e-5)


def test_vectors_of_an_encoder_are_compared(tmp_path: Path) -> None:
    folder = add_modules(make_encoder(tmp_path / "model"), "cls_token")
    with start(folder) as llm:
        scores = [each.outputs.score for each in llm.score(QUERY, DOCUMENTS, use_tqdm=False)]
        ids = [each.prompt_token_ids for each in llm.embed([QUERY, *DOCUMENTS], use_tqdm=False)]
        assert llm.rerank(QUERY, DOCUMENTS, top_n=1, use_tqdm=False)[0].relevance_score == max(scores)
        (encoded,) = llm.encode("dog", use_tqdm=False)
        assert encoded.outputs.data.tolist() == llm.embed("dog", use_tqdm=False)[0].outputs.embedding
        with pytest.raises(InvalidRequestError, match="has no labels to classify by"):
            llm.classify("a", use_tqdm=False)
    vectors = pooled(reference_states(folder, ids), "cls_token")
    np.testing.assert_allclose(scores, cosines(np.repeat(vectors[:1], 4, axis=0), vectors[1:]), atol=1e-5)


def test_a_pair_may_fill_the_context(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "model", "bert", {"num_labels": 1}, head="ForSequenceClassification")
    with start(folder, max_num_batched_tokens=512) as llm:
        (output,) = llm.score("dog", "fox " * (MAX_LEN - 4), use_tqdm=False)
        assert len(output.prompt_token_ids) == MAX_LEN
        with pytest.raises(ContextLengthError):
            llm.score("dog", "fox " * (MAX_LEN - 3), use_tqdm=False)
