"""A head that gives each of some labels a number, and how these become scores and probabilities."""

from __future__ import annotations

from typing import Literal

import msgspec

from splitserve.engine_core.checkpoint.config.fields import Fields

MAX_LABELS = 2**16
_MAX_NAME_CHARS = 256
ScoreFunction = Literal["sigmoid", "identity"]
ClassFunction = Literal["softmax", "sigmoid", "identity"]
# As the sentence-transformers library writes them.
_SCORE_FUNCTIONS: dict[str, ScoreFunction] = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.linear.Identity": "identity",
}
_PROBLEM_TYPES: dict[str, ClassFunction] = {
    "regression": "identity",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}


class HeadTraits(msgspec.Struct, frozen=True, kw_only=True):
    """What a pooled state goes through.

    Attributes:
        pooling: of the states of a prompt: the first token's, the last one's, or the mean.
        dense: checkpoint name of a layer of the model's width; "" if there is none.
        dense_bias: it has one.
        activation: behind it, "tanh", "gelu" (exact) or "gelu_tanh".
        norm: of a norm behind that; "" if there is none.
        output: of the layer that gives each label its number.
        output_bias: it has one.
    """

    pooling: Literal["cls", "lasttoken", "mean"] = "cls"
    dense: str = ""
    dense_bias: bool = True
    activation: str = "tanh"
    norm: str = ""
    output: str = "classifier"
    output_bias: bool = True


class Classifier(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a model for classification, or of a cross-encoder.

    Attributes:
        head: its layers.
        labels: names, in the order of the numbers.
        score_function: makes the number of the only label a score.
        class_function: makes the numbers of all labels probabilities.
    """

    head: HeadTraits
    labels: tuple[str, ...]
    score_function: ScoreFunction
    class_function: ClassFunction


def read_classifier(config: Fields, head: HeadTraits) -> Classifier:
    """Read the labels of a model, and what becomes of their numbers, as vLLM and sentence-transformers do.

    A single label has a sigmoid unless the latter's configuration says otherwise. Of several labels a softmax
    is taken, unless `problem_type` says otherwise.

    Raises:
        ModelLoadError: names the field that is out of range or not supported.
    """
    labels = _labels(config)
    problem = config.text("problem_type", "single_label_classification")
    if problem not in _PROBLEM_TYPES:
        raise config.error("problem_type", f"must be one of {', '.join(_PROBLEM_TYPES)}, got {problem!r}")
    class_function = _PROBLEM_TYPES[problem]
    if len(labels) == 1 and class_function == "softmax":
        class_function = "sigmoid"
    return Classifier(
        head=head,
        labels=labels,
        score_function=_score_function(config),
        class_function=class_function,
    )


def _labels(config: Fields) -> tuple[str, ...]:
    named = config.nested("id2label")
    if named is None:
        count = config.integer("num_labels", 1, MAX_LABELS, 2)
        return tuple(f"LABEL_{i}" for i in range(count))
    names = named.text_items()
    if not 1 <= len(names) <= MAX_LABELS or names.keys() != {str(i) for i in range(len(names))}:
        raise config.error("id2label", f"must name labels 0, 1 and so on, at most {MAX_LABELS}")
    return tuple(names[str(i)][:_MAX_NAME_CHARS] for i in range(len(names)))


def _score_function(config: Fields) -> ScoreFunction:
    fields, field = config.nested("sentence_transformers"), "activation_fn"
    if fields is None or not fields.has(field):
        # The older name.
        fields, field = config, "sbert_ce_default_activation_function"
    return read_score_function(fields, field)


def read_score_function(fields: Fields, field: str) -> ScoreFunction:
    """Read the name of an activation, as the sentence-transformers library writes it; a sigmoid without one.

    Raises:
        ModelLoadError: it is another one.
    """
    name = fields.text(field, "torch.nn.modules.activation.Sigmoid")
    if name not in _SCORE_FUNCTIONS:
        raise fields.error(field, f"must be one of {', '.join(_SCORE_FUNCTIONS)}, got {name[:200]!r}")
    return _SCORE_FUNCTIONS[name]
