"""Fixtures of this folder."""

from __future__ import annotations

from tests.worker.runner.conftest import tiny_bf16_worker, tiny_llama, tiny_worker

__all__ = ["tiny_bf16_worker", "tiny_llama", "tiny_worker"]
