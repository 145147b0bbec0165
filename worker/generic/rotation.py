"""Rotary embedding of queries and keys by our kernel, in the place of a function of the library."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from splitserve.worker.generic.probes import turns_halves
from splitserve.worker.generic.tracing import Launcher
from splitserve.worker.ops.cpu import ops

# The name that nearly all files of models have for it.
_FUNCTION = "apply_rotary_pos_emb"
Turned = tuple[torch.Tensor, torch.Tensor]
Turn = Callable[..., Turned]


class StepRotation:
    """Rotates queries and keys of a step in place: in one pass, in float32 and rounded once.

    Args:
        model: whose modules call the library's function. Only those of a file whose function turns elements i
            and i + R / 2 of a head get ours.
        launch: runs kernels.
    """

    def __init__(self, model: nn.Module, launch: Launcher) -> None:
        self._launch = launch
        files = [vars(sys.modules[name]) for name in {type(module).__module__ for module in model.modules()}]
        self._files = [(file, file[_FUNCTION]) for file in files if turns_halves(file.get(_FUNCTION))]
        self._turns_parts = {function for _file, function in self._files if turns_halves(function, part=True)}
        # Of the step: layers of a kind are handed the same cosines and sines.
        self._tables: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        # Numbers from 0, in longer and longer tensors; recorded steps go on reading the shorter ones.
        self._numbers = [torch.arange(64, dtype=torch.int32)]

    @contextmanager
    def step(self) -> Iterator[None]:
        """Take the place of the library's function within a `with` block, which is a step."""
        for file, function in self._files:
            file[_FUNCTION] = partial(self._turn, function)
        try:
            yield
        finally:
            for file, function in self._files:
                file[_FUNCTION] = function
            self._tables.clear()

    def _turn(
        self,
        function: Turn,
        q: torch.Tensor,
        k: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        *others: object,
        **named: object,
    ) -> Turned:
        """Rotate q [1, Hq, T, D] and k [1, Hkv, T, D] by cos and sin [1, T, R]; return them."""
        is_usual = not others and not named and all(map(_lies_dense, (q, k)))
        is_fit = is_usual and cos.dim() == 3 and cos.shape == sin.shape and cos.shape[:2] == (1, q.shape[2])
        sizes = {q.shape[3], k.shape[3]} if is_fit else set()
        if sizes != {cos.shape[-1]} and not (function in self._turns_parts and len(sizes) == 1):
            return function(q, k, cos, sin, *others, **named)
        rows = self._first_numbers(cos.shape[1])

        def turn(q: torch.Tensor, k: torch.Tensor, table: torch.Tensor) -> None:
            ops.whole.rotate(q, rows, table)
            ops.whole.rotate(k, rows, table)

        self._launch(turn, q[0].transpose(0, 1), k[0].transpose(0, 1), self._table(cos, sin))
        return q, k

    def _first_numbers(self, count: int) -> torch.Tensor:
        if len(self._numbers[-1]) < count:
            self._numbers.append(torch.arange(2 * count, dtype=torch.int32))
        return self._numbers[-1][:count]

    def _table(self, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Return cosines, then sines, of elements that turn, float32 [T, R]."""
        for known_cos, known_sin, known in self._tables:
            if known_cos is cos and known_sin is sin:
                return known
        table = torch.empty(cos.shape[1:], dtype=torch.float32)
        self._launch(_fill, table, cos[0], sin[0])
        self._tables.append((cos, sin, table))
        return table


def _fill(table: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    half = table.shape[1] // 2
    ops.elementwise("copy", table[:, :half], cos[:, :half])
    ops.elementwise("copy", table[:, half:], sin[:, :half])


def _lies_dense(x: torch.Tensor) -> bool:
    """Whether no two elements share their memory, and those of a head are neighbours."""
    if x.dim() != 4:
        return False
    _, heads, tokens, size = x.shape
    # Sizes of 1 have strides that mean nothing.
    apart = (heads == 1 or x.stride(1) >= size) and (tokens == 1 or x.stride(2) >= size)
    return x.shape[0] == 1 and x.stride(3) == 1 and apart
