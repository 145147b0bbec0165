"""Values at the edges of what types and checks can hold."""

from __future__ import annotations

from random import Random

INTEGERS = (
    *(0, 1, -1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 63, 64, 100, 127, 128, 255, 256, 4096),
    *(2**15, 2**16 - 1, 2**16, 2**24, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32 - 1, 2**32),
    *(2**53, 2**53 + 1, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64 - 1),
)
FLOATS = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, 1e-9, 1e-320, 2.0, 1e30, -1e30, 1.7e308, -1.7e308),
    *(float("nan"), float("inf"), float("-inf"), 3.4e38, 3.5e38, 1.0000001),
)
TEXTS = (
    *(
        "",
        "\0",
        " ",
        "a",
        "ab",
        "\n",
        "\r\n",
        "\ufeff",
        "é",
        "\U0001f642",
        "\U0010ffff",
        "%s%n",
        "../..",
        "null",
    ),
    *(
        "default",
        "<|im_end|>",
        "{{ 1 }}",
        "a" * 300,
        "b" * 5000,
        "\u202e",
        "1e999",
        "-1",
        "NaN",
        "\x7f\x1b[0m",
    ),
)


def pick(rng: Random, values: tuple[object, ...]) -> object:
    """One of them; random.choice() takes twice as long."""
    return values[int(rng.random() * len(values))]


def some_scalar(rng: Random) -> object:
    """Any value that is no container."""
    kind = rng.random()
    if kind < 0.4:
        return pick(rng, INTEGERS)
    if kind < 0.6:
        return pick(rng, FLOATS)
    if kind < 0.8:
        return pick(rng, TEXTS)
    return pick(rng, (None, True, False))
