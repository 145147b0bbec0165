"""One loaded tokenizer of each kind, ours and the library's, made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer as RawTokenizer

from splitserve.frontend.text.tokenizer import Tokenizer
from tests.frontend.checkpoints import KINDS, write_checkpoint

TokenizerOf = Callable[[str], Tokenizer]
LibraryOf = Callable[[str], RawTokenizer]


@pytest.fixture(scope="session")
def directory_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the checkpoint of a kind, one of KINDS."""
    return cache(lambda kind: write_checkpoint(tmp_path_factory.mktemp(kind), KINDS[kind]()))


@pytest.fixture(scope="session")
def tokenizer_of(directory_of: Callable[[str], Path]) -> TokenizerOf:
    """Load our tokenizer of a kind."""
    return cache(lambda kind: Tokenizer(directory_of(kind)))


@pytest.fixture(scope="session")
def library_of(directory_of: Callable[[str], Path]) -> LibraryOf:
    """Load the same file with the library alone."""
    return cache(lambda kind: RawTokenizer.from_file(str(directory_of(kind) / "tokenizer.json")))
