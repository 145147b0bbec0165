"""An engine-core that publishes KV events: its files, its exit codes, and what a reset says."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from tests.engine_core.kv_events.router import AllBlocksCleared, BlockStored, EventBatch, Router
from tests.engine_core.server.harness import DEADLINE_S, Engine, running_engine


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kv-") as path:
        yield Path(path)


def flags(folder: Path) -> tuple[str, ...]:
    return (
        *("--kv-events-address", f"ipc://{folder}/kv/events.sock"),
        *("--kv-events-replay-address", f"ipc://{folder}/kv/replay.sock"),
    )


def published(engine: Engine, folder: Path) -> list[EventBatch]:
    """Every batch so far."""
    router = Router()
    batches: list[EventBatch] = []
    with engine.context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.connect(f"ipc://{folder}/kv/replay.sock")
        client.send_multipart([b"", bytes(8)])
        while True:
            assert client.poll(DEADLINE_S * 1000)
            *_, payload = client.recv_multipart()
            if not payload:
                return batches
            batches.append(router.hear(payload))


def test_a_life_begins_cleared(folder: Path) -> None:
    with running_engine(*flags(folder)) as engine:
        client = engine.joined()
        prompt = list(range(10, 42))
        client.generate(1, prompt, max_tokens=1)
        first, stored = published(engine, folder)
    assert first.events == [AllBlocksCleared()]
    assert isinstance(event := stored.events[0], BlockStored)
    assert event.token_ids == prompt
    assert list(folder.iterdir()) == []


def test_a_steady_engine_publishes_one_batch_per_full_block(folder: Path) -> None:
    with running_engine(*flags(folder), "--block-size", "8") as engine:
        engine.joined().generate(1, list(range(10, 18)), max_tokens=33)
        batches = published(engine, folder)
    assert [len(batch.events) for batch in batches] == [1] * 6
    assert all(isinstance(event, BlockStored) for batch in batches[1:] for event in batch.events)


def test_an_address_in_use_ends_with_code_2_and_leaves_nothing(folder: Path) -> None:
    with running_engine(*flags(folder)) as first:
        first.joined()
        # That nothing is left of the second one the harness checks.
        with running_engine(*flags(folder)) as second:
            assert second.exit_code() == 2
            assert "another process already listens on" in second.log()
        assert published(first, folder)


def test_without_the_flag_nothing_is_bound() -> None:
    with running_engine() as engine:
        engine.joined()
        assert "KV events" not in engine.log()
