"""Labels of a checkpoint, and what becomes of their numbers; what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from splitserve.engine_core.checkpoint.config.classifier import HeadTraits, read_classifier
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.errors import ModelLoadError

SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
ONE: dict[str, object] = {"id2label": {"0": "LABEL_0"}}


def read(**fields: object) -> tuple[tuple[str, ...], str, str]:
    """Labels, score function and class function."""
    found = read_classifier(Fields(fields, "config.json"), HeadTraits())
    return found.labels, found.score_function, found.class_function


def test_without_a_word_there_are_two_labels() -> None:
    assert read() == (("LABEL_0", "LABEL_1"), "sigmoid", "softmax")
    assert read(num_labels=3)[0] == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_labels_have_the_names_of_their_numbers() -> None:
    assert read(id2label={"1": "good", "0": "bad"})[0] == ("bad", "good")


def test_a_single_label_has_a_sigmoid() -> None:
    assert read(**ONE) == (("LABEL_0",), "sigmoid", "sigmoid")
    assert read(**ONE, problem_type="regression")[1:] == ("sigmoid", "identity")


@pytest.mark.parametrize(
    "fields",
    [
        {"sentence_transformers": {"activation_fn": IDENTITY}},
        {"sbert_ce_default_activation_function": IDENTITY},
    ],
)
def test_its_score_may_be_the_number_itself(fields: dict[str, Any]) -> None:
    assert read(**ONE, **fields)[1:] == ("identity", "sigmoid")


def test_the_newer_name_of_the_function_counts() -> None:
    newer = {"activation_fn": SIGMOID, "version": "5"}
    fields = {"sentence_transformers": newer, "sbert_ce_default_activation_function": IDENTITY}
    assert read(**ONE, **fields)[1] == "sigmoid"
    assert read(**ONE, **fields | {"sentence_transformers": {"version": "5"}})[1] == "identity"


def test_several_labels_at_once_have_a_sigmoid_each() -> None:
    assert read(problem_type="multi_label_classification")[2] == "sigmoid"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"id2label": {}}, "id2label must name labels 0, 1 and so on"),
        ({"id2label": {"1": "a"}}, "id2label must name labels 0, 1 and so on"),
        ({"id2label": {"0": 5}}, "0 must be a string"),
        ({"id2label": []}, "id2label must be an object"),
        ({"num_labels": 0}, "num_labels must be an integer from 1"),
        ({"problem_type": "ranking"}, "problem_type must be one of regression"),
        ({"sentence_transformers": {"activation_fn": "os.system"}}, "activation_fn must be one of torch"),
        (
            {"sbert_ce_default_activation_function": "relu"},
            "sbert_ce_default_activation_function must be one",
        ),
    ],
)
def test_what_is_not_supported_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelLoadError, match=text):
        read(**fields)
