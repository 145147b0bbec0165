"""The demo model in int8 and int4 knows the language it was trained on about as well as in bfloat16."""

from __future__ import annotations

import pytest
import torch

from benchmarks.perplexity import DEMO_MODEL, Perplexity, Scorer, Text, unseen_texts


@pytest.fixture(scope="module")
def texts() -> list[Text]:
    return list(unseen_texts(DEMO_MODEL, 30))


@pytest.fixture(scope="module")
def plain(texts: list[Text]) -> Perplexity:
    return perplexity("none", texts)


def perplexity(quantization: str, texts: list[Text]) -> Perplexity:
    with torch.inference_mode():
        return Scorer(DEMO_MODEL, quantization).perplexity(texts)


@pytest.mark.parametrize(
    ("quantization", "answers", "all_tokens"), [("int8", 1.002, 1.005), ("int4", 1.01, 1.05)]
)
def test_perplexity_hardly_rises(
    quantization: str, answers: float, all_tokens: float, texts: list[Text], plain: Perplexity
) -> None:
    found = perplexity(quantization, texts)
    # A model that was not quantised at all would give the very same number.
    assert found.all_tokens != plain.all_tokens
    assert found.answers <= answers * plain.answers
    assert found.all_tokens <= all_tokens * plain.all_tokens
