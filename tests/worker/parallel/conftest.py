"""One pool of rank processes for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.worker.parallel.ranks import RankPool

MAX_RANKS = 4


@pytest.fixture(scope="package")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    pool = RankPool(tmp_path_factory.mktemp("rendezvous"), MAX_RANKS)
    yield pool
    pool.close()
