"""Adapters that were loaded by calls, in the next engine at the same address."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from splitserve.engine_core.checkpoint.adapter.place import place_below
from splitserve.engine_core.engine.adapters.calls import AdapterCalls
from splitserve.engine_core.engine.adapters.owner import Adapters
from splitserve.engine_core.ipc.messages import AdaptersChanged, Call, CallKind, CallResult, EngineMessage
from splitserve.engine_core.ipc.wire import AdapterInfo
from splitserve.engine_core.kept.adapters import KeptAdapters
from tests.engine_core.engine.test_adapters import answer, make, sent


class Life:
    """One engine at an address that all have in turn."""

    def __init__(self, folder: Path, names: tuple[str, ...] = ("given",), lora_dir: str = "") -> None:
        self.told: list[EngineMessage] = []
        self.adapters: Adapters = make(2, names)
        kept = KeptAdapters.of(f"ipc://{folder}/engine.sock")
        self.calls = AdapterCalls(
            1, lambda _identity, message: self.told.append(message), self.told.append, kept
        )
        self.place = partial(place_below, lora_dir or str(folder))
        self.calls.restore(self.adapters, self.place)

    def call(self, kind: CallKind, name: str, path: str = "") -> None:
        self.calls.answer(b"", Call(1, kind, adapter=name, path=path), self.place(path), self.adapters)
        sent(self.adapters)
        (result,) = (each for each in self.told if isinstance(each, CallResult))
        assert result.ok
        self.told.clear()

    def listed(self) -> list[tuple[str, str]]:
        return [(each.name, each.path) for each in self.adapters.listed()]


def test_what_was_loaded_is_known_to_the_successor_with_its_files(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.call(CallKind.LOAD_ADAPTER, "new", "new")
    second = Life(tmp_path)
    assert second.listed() == first.listed() == [("given", "/given"), ("new", f"{tmp_path}/new")]
    # Before anything is loaded a resumed request is compared with the files that it began with.
    assert second.adapters.find("new", f"{tmp_path}/new") is not None
    assert second.adapters.listed()[1].digest == f"{tmp_path}/new"
    assert [path for _slot, path in sent(second.adapters)] == ["/given", f"{tmp_path}/new"]
    second.calls.tell(second.adapters)
    assert isinstance(second.told[0], AdaptersChanged)


def test_files_that_have_changed_meanwhile_are_refused(tmp_path: Path) -> None:
    Life(tmp_path).call(CallKind.LOAD_ADAPTER, "new", "new")
    second = Life(tmp_path)
    answer(second.adapters, second.adapters.take_unsent(lambda: []), digest="other")
    adapter = second.adapters.find("new", "")
    assert adapter is not None
    assert "have changed since" in adapter.problem


def test_what_was_unloaded_is_forgotten_and_so_is_all_at_an_orderly_end(tmp_path: Path) -> None:
    first = Life(tmp_path)
    for name in ("one", "two"):
        first.call(CallKind.LOAD_ADAPTER, name, name)
    first.call(CallKind.UNLOAD_ADAPTER, "one")
    second = Life(tmp_path)
    assert [name for name, _path in second.listed()] == ["given", "two"]
    second.calls.forget()
    assert [name for name, _path in Life(tmp_path).listed()] == ["given"]


def test_one_that_took_the_place_of_a_given_name_takes_it_again(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.call(CallKind.UNLOAD_ADAPTER, "given")
    assert Life(tmp_path).listed() == [("given", "/given")]
    first.call(CallKind.LOAD_ADAPTER, "given", "other")
    second = Life(tmp_path)
    assert second.listed() == [("given", f"{tmp_path}/other")]
    assert [path for _slot, path in sent(second.adapters)] == [f"{tmp_path}/other"]


def test_one_outside_of_the_folder_that_is_open_now_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Life(tmp_path).call(CallKind.LOAD_ADAPTER, "new", "new")
    assert Life(tmp_path, lora_dir=f"{tmp_path}/inner").listed() == [("given", "/given")]
    assert "adapter_forgotten" in caplog.text


def test_names_that_no_request_could_have_are_left_out(tmp_path: Path) -> None:
    kept = KeptAdapters.of(f"ipc://{tmp_path}/engine.sock")
    assert kept is not None
    kept.write([AdapterInfo("a b", str(tmp_path)), AdapterInfo("good", str(tmp_path))])
    assert [name for name, _path in Life(tmp_path).listed()] == ["given", "good"]


def test_a_list_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    life = Life(tmp_path / "missing", lora_dir=str(tmp_path))
    life.call(CallKind.LOAD_ADAPTER, "new", "new")
    assert "adapters are not kept" in caplog.text
