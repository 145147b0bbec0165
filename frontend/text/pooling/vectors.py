"""What becomes of a prompt's vector on its way to the client: it is shortened and brought to length 1."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.errors import EngineRequestError, InvalidRequestError
from splitserve.engine_core.ipc.codec import unpack_float32
from splitserve.engine_core.ipc.wire import ModelInfo

# As torch.nn.functional.normalize has it, so that a vector of zeros stays one.
_LEAST_LENGTH = 1e-12


def check_embeds(name: str, info: ModelInfo) -> None:
    """Check that a model makes vectors.

    Raises:
        InvalidRequestError: it generates text, or has labels.
    """
    if info.labels:
        raise InvalidRequestError(f"the model {name!r} scores or classifies texts, it embeds none", "model")
    if not info.embedding_size:
        text = f"the model {name!r} generates text; an engine started with --task embed makes embeddings"
        raise InvalidRequestError(text, "model")


def check_embeds_tokens(name: str, info: ModelInfo) -> None:
    """Check that a model makes a vector of each token.

    Raises:
        InvalidRequestError: it makes none, or only one of each prompt.
    """
    check_embeds(name, info)
    if not info.has_token_vectors:
        text = f"the model {name!r} makes no vectors of tokens; encoders without dense layers do"
        raise InvalidRequestError(text, "task")


def check_generates(name: str, info: ModelInfo) -> None:
    """Check that a model generates text.

    Raises:
        InvalidRequestError: it does something else.
    """
    if info.labels:
        raise InvalidRequestError(
            f"the model {name!r} scores or classifies texts, it generates none", "model"
        )
    if info.embedding_size:
        raise InvalidRequestError(f"the model {name!r} makes embeddings, not text", "model")


def check_dimensions(dimensions: int | None, embedding_size: int) -> int:
    """Return how many elements of a vector are kept.

    Raises:
        InvalidRequestError: names the range.
    """
    is_number = isinstance(dimensions, int) and not isinstance(dimensions, bool)
    if dimensions is not None and not (is_number and 1 <= dimensions <= embedding_size):
        text = f"dimensions must be an integer from 1 to {embedding_size}, got {dimensions!r}"
        raise InvalidRequestError(text, "dimensions")
    return dimensions or embedding_size


def check_vector(values: bytes, size: int) -> None:
    """Check a vector, or the numbers of labels, a float32 column, as the engine sent it.

    Raises:
        EngineRequestError: it has another size.
    """
    if len(values) != 4 * size:
        raise EngineRequestError(f"the engine sent {len(values)} bytes of a vector of {size} numbers")


def finished_vector(values: bytes, dimensions: int, *, normalizes: bool) -> npt.NDArray[np.float32]:
    """Return a vector, float32 [dimensions].

    It is shortened before it is brought to length 1, as vectors of models that were trained for several sizes
    have to be (Kusupati et al. 2022, arXiv:2205.13147).

    Args:
        values: float32 column of at least so many numbers.
        dimensions: how many of them are kept.
        normalizes: to length 1.
    """
    vector = unpack_float32(values)[:dimensions]
    return _normalized(vector) if normalizes else vector


def cosines(columns: Sequence[bytes], num_first: int, size: int) -> npt.NDArray[np.float64]:
    """Return the cosine of each text with the one that it is compared with, float64 [n], from -1 to 1.

    Args:
        columns: vectors of the first texts, then of the others, each a float32 column.
        num_first: how many come first: one, or as many as there are others.
        size: of a vector.
    """
    vectors = np.stack([finished_vector(values, size, normalizes=True) for values in columns])
    vectors = vectors.astype(np.float64)
    found = (vectors[:num_first] * vectors[num_first:]).sum(axis=1)
    # A vector's length is 1 up to the roundings of float32.
    return np.asarray(np.clip(found, -1.0, 1.0))


def token_vectors(values: bytes, size: int, *, normalizes: bool) -> npt.NDArray[np.float32]:
    """Return the vectors of a prompt's tokens, float32 [n, size].

    Args:
        values: float32 column of n * size numbers.
        size: of each.
        normalizes: to length 1, each.
    """
    vectors = unpack_float32(values).reshape(-1, size)
    return _normalized(vectors) if normalizes else vectors


def _normalized(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Bring a vector, or each of several, to length 1."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=-1, keepdims=True)
    lengths = np.maximum(lengths, _LEAST_LENGTH).astype(np.float32)
    return np.asarray(vectors / lengths, np.float32)


def as_base64(vector: npt.NDArray[np.floating]) -> str:
    """Return a vector as OpenAI's SDK asks for it: base64 of its little-endian float32."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
