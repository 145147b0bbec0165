"""Which workers an engine counts as its own, before it has talked to them."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import msgspec
import pytest
import zmq

from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.executor.local_workers import (
    LocalWorkers,
    fingerprint_of,
    has_served,
    keeping_folder,
)
from splitserve.engine_core.kept.record import GroupRecord

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are kept on Linux only")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    """Of an engine whose predecessor has left workers."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    made = EngineConfig(model=str(model), listen="ipc:///tmp/of-a-test/engine.sock")
    folder = keeping_folder(made)
    assert folder is not None
    folder.enter()
    folder.write(GroupRecord(fingerprint_of(made), []))
    folder.leave(keep=True)
    return made


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({}, True),
        ({"log_level": "debug", "max_num_waiting": 7, "drain_timeout_s": 1.0, "worker_wait_s": 5.0}, True),
        ({"max_num_seqs": 7}, False),
        ({"num_blocks": 7}, False),
        ({"kv_offload_gb": 1.0}, False),
        ({"tensor_parallel_size": 2}, False),
        ({"step_timeout_s": 7.0}, False),
        ({"tokenizer_check": False}, False),
        ({"listen": "ipc:///tmp/of-a-test/other.sock"}, False),
        ({"worker_wait_s": 0.0}, False),
    ],
)
def test_settings_of_the_engine_alone_do_not_tell_its_workers_apart(
    config: EngineConfig, changes: dict[str, object], known: bool
) -> None:
    assert has_served(msgspec.structs.replace(config, **changes)) is known


def test_a_changed_checkpoint_is_checked_again(config: EngineConfig) -> None:
    (Path(config.model) / "config.json").write_text("{} ")
    assert not has_served(config)


@pytest.mark.parametrize("listen", ["tcp://127.0.0.1:0", "tcp://127.0.0.1:*"])
def test_workers_of_an_address_that_nobody_can_know_end_with_their_engine(listen: str) -> None:
    assert keeping_folder(EngineConfig(listen=listen)) is None


def refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_on_a_full_disk_workers_serve_and_end_with_their_engine(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", refuse)
    monkeypatch.setattr("splitserve.engine_core.executor.local_workers.WorkersFolder.write", refuse)
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    group = LocalWorkers(config, lambda place: argv, keeping_folder(config))
    with zmq.Context() as context:
        group.start(context)
        assert group.how_it_ended(0) is None
        assert group.configure(0).worker_wait_s == 0.0
        pid = group._workers[0].name.pid
        group.leave()
    assert not os.path.exists(f"/proc/{pid}")
