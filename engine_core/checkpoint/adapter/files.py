"""Which layers an adapter changes, decided from the header of its file before anything is read."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from splitserve.engine_core.checkpoint.adapter.config import CONFIG, AdapterConfig, read_adapter_config
from splitserve.engine_core.checkpoint.contents import explain
from splitserve.engine_core.checkpoint.files import read_file
from splitserve.engine_core.checkpoint.safetensors_file import SafetensorsFile
from splitserve.engine_core.checkpoint.weight_files import CheckpointTensor
from splitserve.engine_core.errors import ModelLoadError

WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_LOADABLE = ("F32", "BF16", "F16")
_PIECE_BYTES = 2**20


class DeltaTensors(NamedTuple):
    """The delta of one module.

    Attributes:
        a: [rank, inputs].
        b: [outputs, rank].
        scale: what their product is multiplied with.
    """

    a: CheckpointTensor
    b: CheckpointTensor
    scale: float

    @property
    def rank(self) -> int:
        """Of the delta."""
        return self.a.entry.shape[0]


class Adapter:
    """The checked files of an adapter; a context manager that closes them.

    Attributes:
        directory: where they are.
        config: of the adapter.
        deltas: by name of the module, as the base model has it.
    """

    def __init__(self, directory: Path, config: AdapterConfig, file: SafetensorsFile) -> None:
        """Check the tensors against the configuration.

        Raises:
            ModelLoadError: names the file and the tensor.
        """
        self.directory = directory
        self.config = config
        self._file = file
        self.deltas = _pair(config, file)

    @classmethod
    def open(cls, directory: Path, max_rank: int) -> Adapter:
        """Open and check an adapter, without its numbers.

        Args:
            directory: as PEFT writes it.
            max_rank: the largest rank that is served.

        Raises:
            ModelLoadError: it is damaged, or cannot be served.
        """
        if not (directory / CONFIG).is_file():
            raise ModelLoadError(f"{directory} is no adapter: {CONFIG} does not exist")
        config = read_adapter_config(directory)
        if not (directory / WEIGHTS).exists():
            found = "adapter_model.bin, a pickle, which is not loaded" if _has_pickle(directory) else ""
            raise ModelLoadError(f"{directory / WEIGHTS} does not exist, and {found or explain(directory)}")
        file = SafetensorsFile(directory / WEIGHTS)
        try:
            adapter = cls(directory, config, file)
            for module, delta in adapter.deltas.items():
                if delta.rank > max_rank:
                    raise ModelLoadError(
                        f"{file.path}: the delta of {module} has rank {delta.rank}, at most {max_rank} is "
                        "served (--max-lora-rank)"
                    )
        except BaseException:
            file.close()
            raise
        return adapter

    def digest(self) -> str:
        """Return the hex SHA-256 of both files.

        Raises:
            ModelLoadError: a file cannot be read.
        """
        digest = hashlib.sha256(read_file(self.directory / CONFIG) or b"")
        piece = memoryview(bytearray(_PIECE_BYTES))
        offset, size = 0, self._file.num_bytes
        while offset < size:
            part = piece[: min(_PIECE_BYTES, size - offset)]
            self._file.read_into(offset, part)
            digest.update(part)
            offset += len(part)
        return digest.hexdigest()

    def __enter__(self) -> Adapter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _has_pickle(directory: Path) -> bool:
    return (directory / "adapter_model.bin").exists()


def _pair(config: AdapterConfig, file: SafetensorsFile) -> dict[str, DeltaTensors]:
    found: dict[str, dict[str, CheckpointTensor]] = {}
    for name, entry in file.tensors.items():
        module, side = _split(name, file.path)
        if entry.dtype not in _LOADABLE:
            raise ModelLoadError(
                f"{file.path}: tensor {name!r} has dtype {entry.dtype}; supported are {', '.join(_LOADABLE)}"
            )
        found.setdefault(module, {})[side] = CheckpointTensor(name, file, entry)
    if not found:
        raise ModelLoadError(f"{file.path} holds no tensors")
    return {module: _delta(config, module, sides, file.path) for module, sides in found.items()}


def _split(name: str, path: Path) -> tuple[str, str]:
    """Return a tensor's module, and whether it is the "A" or "B" of its delta."""
    for side in ("A", "B"):
        suffix = f".lora_{side}.weight"
        if name.startswith(_PREFIX) and name.endswith(suffix):
            return name[len(_PREFIX) : -len(suffix)], side
    for kind in ("lora_embedding_", "lora_magnitude_vector", "modules_to_save", ".bias", "base_layer"):
        if kind in name:
            raise ModelLoadError(f"{path}: tensor {name!r} is not served: only deltas of linear layers are")
    raise ModelLoadError(f"{path}: tensor {name!r} is none of an adapter as PEFT writes it")


def _delta(
    config: AdapterConfig, module: str, sides: dict[str, CheckpointTensor], path: Path
) -> DeltaTensors:
    if len(sides) < 2:
        (side,) = sides
        other = "B" if side == "A" else "A"
        raise ModelLoadError(f"{path}: {module} has a lora_{side}, but no lora_{other}")
    delta = DeltaTensors(sides["A"], sides["B"], config.scale_of(module))
    rank = config.rank_of(module)
    for tensor, dimension in ((delta.a, 0), (delta.b, 1)):
        shape = tensor.entry.shape
        if len(shape) != 2 or shape[dimension] != rank:
            raise ModelLoadError(
                f"{path}: tensor {tensor.name!r} has shape {list(shape)}, but {CONFIG} gives the rank {rank}"
            )
    return delta
