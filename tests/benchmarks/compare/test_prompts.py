"""Prompts: of exact length, and never the same twice."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.compare.prompts import FIRST_TOKEN_ID, PromptSource
from tests.benchmarks.compare.conftest import SMALL


def test_no_two_prompts_of_a_run_begin_alike(small_model: Path) -> None:
    prompts = PromptSource(small_model, 1)
    drawn = [tuple(ids[:16]) for _ in range(20) for ids in prompts.token_ids(8, 32)]
    texts = [text[:60] for _ in range(20) for text in prompts.texts(8, 32)]
    assert len(set(drawn)) == len(set(texts)) == 160


def test_runs_with_other_seeds_draw_other_prompts(small_model: Path) -> None:
    first, second = (PromptSource(small_model, seed) for seed in (1, 2))
    assert first.token_ids(1, 32) != second.token_ids(1, 32)
    assert first.texts(1, 32) != second.texts(1, 32)


def test_ids_are_ordinary_tokens_of_the_model(small_model: Path) -> None:
    ids = {i for prompt in PromptSource(small_model, 1).token_ids(100, 100) for i in prompt}
    assert min(ids) >= FIRST_TOKEN_ID
    assert max(ids) == SMALL.vocab_size - 1


def test_texts_have_exactly_the_tokens_asked_for(small_model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(small_model / "tokenizer.json"))
    for text in PromptSource(small_model, 1).texts(50, 17):
        assert len(tokenizer.encode(text).ids) == 17
