"""The encoders and sentences that embedding benchmarks share."""

from __future__ import annotations

import random
from typing import NamedTuple

SHORTEST, LONGEST = 32, 256


class Shape(NamedTuple):
    """Layers, width, heads, and width of the MLP."""

    num_layers: int
    hidden_size: int
    num_heads: int
    intermediate_size: int


SHAPES = {"minilm": Shape(6, 384, 12, 1536), "bge-base": Shape(12, 768, 12, 3072)}


def draw_sentences(count: int) -> list[list[int]]:
    """Return token ids; lengths are even over the range."""
    draw = random.Random(0)
    return [
        [draw.randrange(1000, 30000) for _ in range(draw.randint(SHORTEST, LONGEST))] for _ in range(count)
    ]
