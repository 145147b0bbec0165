"""What becomes of the numbers that a model gives its labels: a score, or a probability of each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.ipc.codec import unpack_float32
from splitserve.engine_core.ipc.wire import ModelInfo


def check_classifies(name: str, info: ModelInfo) -> None:
    """Check that a model has labels.

    Raises:
        InvalidRequestError: it has none.
    """
    if not info.labels:
        raise InvalidRequestError(f"the model {name!r} has no labels to classify by", "model")


def is_cross_encoder(name: str, info: ModelInfo) -> bool:
    """Whether a model reads two texts at once and scores them; otherwise their vectors are compared.

    Raises:
        InvalidRequestError: it can do neither.
    """
    if not info.pooled_size:
        text = f"the model {name!r} generates text; an engine started with --task embed makes embeddings"
        raise InvalidRequestError(text, "model")
    if len(info.labels) > 1:
        text = f"the model {name!r} has {len(info.labels)} labels, and a score is of one; use /classify"
        raise InvalidRequestError(text, "model")
    return bool(info.labels)


def score_of(values: bytes, info: ModelInfo) -> float:
    """Return the score of two texts.

    Args:
        values: float32 column of one number.
        info: of the model, which says what makes it a score.
    """
    number = unpack_float32(values).astype(np.float64)
    return float((_sigmoid(number) if info.score_function == "sigmoid" else number)[0])


def probabilities_of(values: bytes, info: ModelInfo) -> npt.NDArray[np.float64]:
    """Return the probability of each label, or its number where the model was made for regression.

    Args:
        values: float32 column, a number for each label.
        info: of the model.
    """
    numbers = unpack_float32(values).astype(np.float64)
    if info.class_function == "softmax":
        weights = np.exp(numbers - numbers.max())
        return np.asarray(weights / weights.sum())
    return _sigmoid(numbers) if info.class_function == "sigmoid" else numbers


def _sigmoid(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # tanh does not overflow.
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * numbers)))
