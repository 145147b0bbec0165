"""Fixtures of every test folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.checkpoints import CheckpointCache


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> CheckpointCache:
    """Tiny random checkpoints, each made once: `checkpoints.get(CheckpointSpec("llama"))` is a directory."""
    from tests.checkpoints import CheckpointCache

    return CheckpointCache(tmp_path_factory.mktemp("checkpoints"))
