"""Which FlashAttention is taken: what is installed, suits and works; and why not, of those that are not."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch

from splitserve.worker.attention.flash_editions import EDITIONS, Edition, find_edition
from splitserve.worker.attention.needs import AttentionNeeds
from tests.worker.attention.compile_flash_4 import CALLS
from tests.worker.attention.flash_modules import MODULES

ROOT = Path(__file__).resolve().parents[3]
CPU = torch.device("cpu")
NEEDS = AttentionNeeds(torch.float32, 16, 64, 8, 2)
PAGES_OF_256 = NEEDS._replace(block_size=256)


def install(monkeypatch: pytest.MonkeyPatch, name: str, **contents: object) -> None:
    module = ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, stand_in in MODULES.items():
        functions = {key: getattr(stand_in, key) for key in vars(stand_in) if key.startswith("flash")}
        install(monkeypatch, name, **functions)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("major", "needs", "name"),
    [
        (9, NEEDS, "FlashAttention 3"),
        (8, NEEDS, "FlashAttention 3"),
        (10, NEEDS, "FlashAttention 4"),
        (10, PAGES_OF_256._replace(head_dim=72), "FlashAttention 2"),
        (12, PAGES_OF_256, "FlashAttention 2"),
    ],
)
def test_the_edition_suits_device_head_and_block_size(major: int, needs: AttentionNeeds, name: str) -> None:
    found = find_edition(major, needs, CPU)
    assert (found.name, found.reason) == (name, "")
    assert found.attend is not None


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("major", "needs", "reason"),
    [
        (12, NEEDS, "FlashAttention 2 needs --block-size 256"),
        (
            11,
            NEEDS._replace(head_dim=72),
            "FlashAttention 4 has pages for heads of a multiple of 16, not of 72",
        ),
        (7, PAGES_OF_256, "no edition has paged kernels for compute capability 7.x"),
    ],
)
def test_what_does_not_suit_is_named(major: int, needs: AttentionNeeds, reason: str) -> None:
    assert find_edition(major, needs, CPU).reason == reason


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, None)
    reason = find_edition(9, PAGES_OF_256, CPU).reason
    assert all(f"{edition.name}: import of {edition.module} halted" in reason for edition in EDITIONS)


@pytest.mark.usefixtures("installed")
def test_an_edition_that_breaks_when_it_is_imported_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("broken")
    (folder / "flash_attn_interface.py").write_text("raise RuntimeError('no  driver' + '!' * 1000)")
    monkeypatch.delitem(sys.modules, "flash_attn_interface")
    monkeypatch.syspath_prepend(folder)
    assert find_edition(9, NEEDS, CPU).name == "FlashAttention 4"
    reason = find_edition(8, NEEDS, CPU).reason
    assert reason.startswith("FlashAttention 3: RuntimeError: no driver!")
    assert len(reason) < 300


@pytest.mark.usefixtures("installed")
def test_an_empty_namespace_is_no_edition(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the fourth alone leaves under the name of the second.
    install(monkeypatch, "flash_attn")
    reason = find_edition(12, PAGES_OF_256, CPU).reason
    assert reason.startswith("FlashAttention 2: AttributeError: module 'flash_attn' has no attribute")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda out: out * 0.9, "RuntimeError: a trial call returned a wrong result"),
        (lambda out: 1 / 0, "ZeroDiv"),
    ],
)
def test_an_edition_that_fails_a_trial_call_is_passed_over(  # type: ignore[no-untyped-def]
    monkeypatch: pytest.MonkeyPatch, spoil, reason: str
) -> None:
    works = MODULES["flash_attn_interface"].flash_attn_with_kvcache
    install(
        monkeypatch,
        "flash_attn_interface",
        flash_attn_with_kvcache=lambda *args, **kwargs: spoil(works(*args, **kwargs)),
    )
    assert find_edition(9, NEEDS, CPU).name == "FlashAttention 4"
    assert find_edition(8, NEEDS, CPU).reason.startswith(f"FlashAttention 3: {reason}")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("block_size", [2, 16, 256])
@pytest.mark.parametrize("surplus", [0, 1])
def test_the_trial_notices_what_lies_behind_the_end(
    monkeypatch: pytest.MonkeyPatch, block_size: int, surplus: int
) -> None:
    works = MODULES["flash_attn_interface"].flash_attn_with_kvcache

    def sees_more(*args: object, cache_seqlens: torch.Tensor, **kwargs: object) -> torch.Tensor:
        return works(*args, cache_seqlens=cache_seqlens + surplus, **kwargs)

    install(monkeypatch, "flash_attn_interface", flash_attn_with_kvcache=sees_more)
    found = find_edition(8, NEEDS._replace(block_size=block_size), CPU)
    assert (found.name == "FlashAttention 3") == (surplus == 0)


@pytest.mark.parametrize("edition", EDITIONS, ids=lambda edition: edition.name)
def test_the_stand_in_has_the_signature_of_what_is_installed(edition: Edition) -> None:
    stand_in = MODULES[edition.module]
    (name,) = (key for key in vars(stand_in) if key.startswith("flash"))
    try:
        with warnings.catch_warnings(action="ignore"):
            real = getattr(importlib.import_module(edition.module), name)
    except (ImportError, AttributeError) as error:
        pytest.skip(str(error))
    expected, actual = (inspect.signature(call).parameters for call in (real, getattr(stand_in, name)))
    assert [(key, p.default) for key, p in actual.items()] == [
        (key, p.default) for key, p in expected.items()
    ]


@pytest.mark.timeout(300)
def test_the_fourth_compiles_our_calls_for_hopper_without_a_gpu() -> None:
    if importlib.util.find_spec("cutlass") is None:
        pytest.skip("flash-attn-4 is not installed")
    command = [sys.executable, "-W", "ignore", "-m", "tests.worker.attention.compile_flash_4", "sm_90"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("compiled Call") == len(CALLS)
