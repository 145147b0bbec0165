"""Which types of tensors a GGUF file can have, and how many bytes a block of their elements takes.

Only those that the worker can read are here by name; the others are refused by theirs.
"""

from __future__ import annotations

from typing import NamedTuple


class TensorType(NamedTuple):
    """A type of tensor.

    Attributes:
        name: as GGUF names it.
        block_elements: neighbouring elements of a row that are stored together.
        block_bytes: what they take.
    """

    name: str
    block_elements: int
    block_bytes: int


TYPES = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    20: TensorType("IQ4_NL", 32, 18),
    23: TensorType("IQ4_XS", 256, 136),
    30: TensorType("BF16", 1, 2),
    39: TensorType("MXFP4", 32, 17),
}
"""By the number in the file."""

OTHERS = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    40: "NVFP4",
}
"""Names of types that are not read."""

BLOCKS = {kind.name: kind for kind in TYPES.values() if kind.block_elements > 1}
"""Types of quantized tensors, by name."""
