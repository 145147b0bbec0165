"""The `flash_attn` backend calls each edition as its signature asks, and finds the one that can be used."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor

from tests.worker.attention.flash_modules import Flash2, Flash3, Flash4
from tests.worker.attention.steps import Case, run_steps
from tests.worker.ops.turning import turned
from worker.attention.cpu import CpuAttention
from worker.attention.flash import EDITIONS, FlashAttention, find_edition

MODULES = {"flash_attn": Flash2, "flash_attn_interface": Flash3, "flash_attn.cute": Flash4}


class PlainWriter:
    """The kernels that write caches, in plain torch and on caches of any strides."""

    def kv_write(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
        blocks, offsets = slots.long() // k_cache.shape[2], slots.long() % k_cache.shape[2]
        k_cache[blocks, :, offsets], v_cache[blocks, :, offsets] = k, v

    def rotary_kv_write(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        slots: Tensor,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 0.0,
    ) -> None:
        q.copy_(turned(q, positions, cos_sin, q_norm, eps))
        self.kv_write(turned(k, positions, cos_sin, k_norm, eps), v, k_cache, v_cache, slots)


@pytest.mark.parametrize("edition", EDITIONS, ids=lambda edition: edition.name)
@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("window", [0, 1, 5])
def test_every_edition_agrees_with_our_kernels(edition, window: int, turns: bool) -> None:  # type: ignore[no-untyped-def]
    block_size = 256 if edition.block_multiple == 256 else 4
    case = Case(block_size=block_size, sliding_window=window, turns=turns, norms=window == 5)
    backend = FlashAttention(PlainWriter(), torch.device("cpu"), edition.adapt(MODULES[edition.module]))
    torch.testing.assert_close(
        run_steps(backend, case), run_steps(CpuAttention(), case), rtol=1e-4, atol=1e-5
    )


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, stand_in in MODULES.items():
        module = ModuleType(name)
        vars(module).update(
            {key: getattr(stand_in, key) for key in vars(stand_in) if key.startswith("flash")}
        )
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("major", "block_size", "name"),
    [(9, 16, "FlashAttention 3"), (10, 16, "FlashAttention 4"), (8, 256, "FlashAttention 2")],
)
def test_the_edition_suits_device_and_block_size(major: int, block_size: int, name: str) -> None:
    found = find_edition(major, block_size)
    assert (found.name, found.reason) == (name, "")
    assert found.attend is not None


@pytest.mark.usefixtures("installed")
def test_pages_too_small_for_the_only_edition_are_named() -> None:
    assert find_edition(8, 16).reason == "FlashAttention 2 needs --block-size 256"


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, None)
    reason = find_edition(9, 256).reason
    assert all(edition.name in reason for edition in EDITIONS)
    assert find_edition(7, 256).reason == "no edition has paged kernels for compute capability 7.x"
