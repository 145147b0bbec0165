"""Which class reads the tensors of each scheme, and how a tensor of the model is found in a checkpoint."""

from __future__ import annotations

from splitserve.engine_core.checkpoint.gguf.tensor_types import BLOCKS
from splitserve.engine_core.checkpoint.quantization.schemes import (
    AwqScheme,
    GptqScheme,
    PackedScheme,
    Quantization,
    ScaledScheme,
    Scheme,
)
from splitserve.engine_core.checkpoint.weight_files import Checkpoint
from splitserve.worker.layers.parameter import Part
from splitserve.worker.weights.formats.awq import AwqTensor
from splitserve.worker.weights.formats.base import FLOATS, Places, StoredTensor
from splitserve.worker.weights.formats.blocks import BlockTensor
from splitserve.worker.weights.formats.gptq import GptqTensor
from splitserve.worker.weights.formats.neighbours import Neighbours
from splitserve.worker.weights.formats.packed import PackedTensor
from splitserve.worker.weights.formats.scaled import ScaledTensor
from splitserve.worker.weights.tensor_source import TensorSource, make_source

_WEIGHT = ".weight"


class WeightFormats:
    """How the tensors of a model are found in a checkpoint.

    A matrix that the config calls quantized may be there in floats all the same; one that it does not is
    never looked for in another form.

    Args:
        checkpoint: the open files.
        quantization: how matrices are stored; None if none is quantized.
        prefix: of tensor names, that the checkpoint may lack.
    """

    def __init__(self, checkpoint: Checkpoint, quantization: Quantization | None, prefix: str) -> None:
        self._checkpoint = checkpoint
        self._quantization = quantization
        self._prefix = prefix

    def find(self, part: Part, missing: dict[str, None]) -> TensorSource | None:
        """Return the numbers of a part; None if a tensor is missing, whose name is added.

        Raises:
            ModelLoadError: it has a wrong shape or dtype, or a tensor that it consists of is missing.
        """
        if part.neighbour:
            halves = [self.find(half, missing) for half in part.halves]
            found_halves = [half for half in halves if half is not None]
            return Neighbours(*found_halves) if len(found_halves) == 2 else None
        stored = self._find_quantized(part)
        if stored is not None:
            return stored
        found = {name: self._checkpoint.find(name, self._prefix) for name in part.tensor_names}
        tensors = [tensor for tensor in found.values() if tensor is not None]
        if len(tensors) == len(found):
            is_blocks = tensors[0].entry.dtype in BLOCKS
            return BlockTensor(tensors[0], part.shape) if is_blocks else make_source(tensors, part)
        missing |= dict.fromkeys(name for name, tensor in found.items() if tensor is None)
        return None

    def _find_quantized(self, part: Part) -> StoredTensor | None:
        if self._quantization is None or len(part.shape) != 2 or not part.name.endswith(_WEIGHT):
            return None
        module = part.name.removesuffix(_WEIGHT)
        scheme = self._quantization.scheme_of(module)
        if scheme is None:
            return None
        places = Places(self._checkpoint, module, self._prefix, (part.shape[0], part.shape[1]))
        if not _is_there(places, scheme):
            return None
        if part.transposed and not part.is_absorbed:
            raise places.error(
                "is quantized, which is not supported in an architecture that stores it turned"
            )
        return _open(places, scheme)


def _is_there(places: Places, scheme: Scheme) -> bool:
    """Whether the checkpoint stores a matrix by a scheme; otherwise it may be there in floats."""
    match scheme:
        case GptqScheme() | AwqScheme():
            return places.find("qweight") is not None
        case PackedScheme():
            return places.find("weight_packed") is not None
        case ScaledScheme():
            found = places.find("weight")
            return found is not None and found.entry.dtype not in FLOATS


def _open(places: Places, scheme: Scheme) -> StoredTensor:
    match scheme:
        case GptqScheme():
            return GptqTensor(places, scheme)
        case AwqScheme():
            return AwqTensor(places, scheme)
        case PackedScheme():
            return PackedTensor(places, scheme)
        case ScaledScheme():
            return ScaledTensor(places, scheme)
