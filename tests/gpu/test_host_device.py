"""The functions of csrc/common that CPU and GPU share, compiled for the CPU."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import pytest
import torch

from splitserve.worker.ops.cpu import ops
from tests.gpu.emulated.build import build

Array = npt.NDArray


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return ctypes.CDLL(str(build()))


def apply(library: ctypes.CDLL, name: str, source: Array, dtype: npt.DTypeLike) -> Array:
    """out[i] = name(source[i])."""
    out = np.empty(source.shape, dtype)
    pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (out, source)]
    getattr(library, name)(*pointers, ctypes.c_int64(source.size))
    return out


def all_halves(dtype: torch.dtype) -> tuple[Array, torch.Tensor]:
    """Every pattern of 16 bits that is a number, as integers and as torch reads them."""
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    bits = bits[~bits.view(dtype).isnan()]
    return bits.numpy().view(np.uint16), bits.view(dtype)


HALVES = [("bfloat16", torch.bfloat16), ("float16", torch.float16)]


@pytest.mark.parametrize(("name", "dtype"), HALVES)
def test_every_16_bit_number_widens_exactly(library: ctypes.CDLL, name: str, dtype: torch.dtype) -> None:
    bits, numbers = all_halves(dtype)
    widened = apply(library, f"widen_{name}", bits, np.float32)
    assert np.array_equal(widened.view(np.uint32), numbers.float().numpy().view(np.uint32))


@pytest.mark.parametrize(("name", "dtype"), HALVES)
def test_floats_are_rounded_as_torch_rounds_them(library: ctypes.CDLL, name: str, dtype: torch.dtype) -> None:
    exact = all_halves(dtype)[1].float().numpy()
    # Around every number and every midpoint between two neighbours, ties included.
    finite = np.sort(exact[np.isfinite(exact)])
    middles = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    points = np.concatenate(
        [finite, middles, np.array([np.inf, -np.inf, 1e38, -1e38, 1e-45, 0.0, -0.0], np.float32)]
    )
    floats = np.concatenate([points, *(np.nextafter(points, np.float32(s)) for s in (-np.inf, np.inf))])
    narrowed = apply(library, f"narrow_{name}", floats, np.uint16)
    expected = torch.from_numpy(floats).to(dtype).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(narrowed, expected)


@pytest.mark.parametrize(("name", "dtype"), HALVES)
def test_a_nan_stays_one(library: ctypes.CDLL, name: str, dtype: torch.dtype) -> None:
    patterns = np.array([0x7F800001, 0x7FC00000, 0xFF800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    narrowed = apply(library, f"narrow_{name}", patterns, np.uint16)
    assert torch.from_numpy(narrowed.view(np.int16)).view(dtype).isnan().all()


def test_order_keys_sort_as_floats_do_and_lead_back(library: ctypes.CDLL) -> None:
    rng = np.random.default_rng(0)
    floats = rng.integers(0, 1 << 32, 20000, dtype=np.uint32).view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-45, 1.0], np.float32)
    floats = np.concatenate([floats[~np.isnan(floats)], special])
    keys = apply(library, "order_keys", floats, np.uint32)
    order = np.argsort(keys, kind="stable")
    assert (np.diff(floats[order]) >= 0).all()
    # Equal keys are equal floats, both zeros among them.
    assert len(np.unique(keys)) == len(np.unique(floats))
    back = apply(library, "floats_of_order_keys", keys, np.float32)
    assert np.array_equal(back, floats)


def test_preference_is_by_logit_and_then_by_the_lower_id(library: ctypes.CDLL) -> None:
    logits = np.array([1.0, 3.0, -0.0, 3.0, 0.0, -np.inf, 1.0], np.float32)
    keys = apply(library, "preference_keys", logits, np.uint64)
    assert list(np.argsort(keys)[::-1]) == [1, 3, 0, 6, 2, 4, 5]


def test_noise_draws_what_the_cpu_kernel_draws(library: ctypes.CDLL) -> None:
    # Among equal logits the token with the least noise wins, if it is a clear winner.
    vocab = 1000
    for seed, position in [(0, 0), (7, 12), (2**63 + 5, 2**40)]:
        bits = np.empty(vocab, np.uint32)
        arguments = (ctypes.c_uint64(seed), ctypes.c_uint64(position), ctypes.c_int64(vocab))
        library.noise_words(bits.ctypes.data_as(ctypes.c_void_p), *arguments)
        token = torch.empty(1, dtype=torch.int32)
        one, zero = torch.ones(1), torch.zeros(1)
        signed_seed = torch.tensor([seed - 2**64 if seed >= 2**63 else seed])
        top_k = torch.zeros(1, dtype=torch.int32)
        ops.sampling.sample(
            token, torch.zeros(1, vocab), one, top_k, one, zero, signed_seed, torch.tensor([position])
        )
        assert token.item() == bits.argmin()
