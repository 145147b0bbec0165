"""One loaded tokenizer of each kind, made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from frontend.tokenizer import Tokenizer
from tests.frontend.checkpoints import KINDS, write_checkpoint

TokenizerOf = Callable[[str], Tokenizer]


@pytest.fixture(scope="session")
def tokenizer_of(tmp_path_factory: pytest.TempPathFactory) -> TokenizerOf:
    """Load the tokenizer of a kind: "byte_level", "with_bos", "sentencepiece", "metaspace", "wordpiece"."""

    @cache
    def load(kind: str) -> Tokenizer:
        return Tokenizer(write_checkpoint(tmp_path_factory.mktemp(kind), KINDS[kind]()))

    return load
