"""Which files a checkpoint directory consists of, and which tensor is in which file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from splitserve.engine_core.checkpoint.config.field_files import read_fields
from splitserve.engine_core.checkpoint.contents import explain
from splitserve.engine_core.checkpoint.gguf.architectures import find_architecture
from splitserve.engine_core.checkpoint.gguf.gguf_file import (
    CONFIG_VECTORS,
    GgufFile,
    is_gguf,
    open_parts,
    read_contents,
)
from splitserve.engine_core.checkpoint.gguf.names import place
from splitserve.engine_core.checkpoint.safetensors_file import SafetensorsFile, TensorEntry
from splitserve.engine_core.errors import ModelLoadError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_SHARDS = 1024
_SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.safetensors")
_DTYPE_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class CheckpointTensor(NamedTuple):
    """One tensor and the checked file that contains it.

    Attributes:
        name: in the file.
        file: the open file.
        entry: its description.
        offset: what is added to its values.
    """

    name: str
    file: SafetensorsFile | GgufFile
    entry: TensorEntry
    offset: float = 0.0

    def of_experts(self, name: str, num_experts: int) -> dict[str, CheckpointTensor]:
        """Return what a tensor holds by names: itself, or the matrix of each expert if the name has {} in it.

        Raises:
            ModelLoadError: it holds the matrices of another number of experts.
        """
        if "{}" not in name:
            return {name: self}
        dtype, shape, begin, num_bytes = self.entry
        if len(shape) != 3 or shape[0] != num_experts:
            raise ModelLoadError(
                f"{self.file.path}: tensor {self.name!r} has shape {list(shape)}, the metadata asks for "
                f"matrices of {num_experts} experts"
            )
        size = num_bytes // num_experts
        entries = (TensorEntry(dtype, shape[1:], begin + i * size, size) for i in range(num_experts))
        return {name.format(i): self._replace(entry=entry) for i, entry in enumerate(entries)}


class Checkpoint:
    """The checked weight files of a model; a context manager that closes them."""

    def __init__(
        self,
        directory: Path,
        files: Sequence[SafetensorsFile | GgufFile],
        tensors: dict[str, CheckpointTensor],
    ) -> None:
        self.directory = directory
        self._files = files
        self._tensors = tensors

    @classmethod
    def open(cls, directory: Path) -> Checkpoint:
        """Open and check all files: safetensors of a directory, or a GGUF file.

        Raises:
            ModelLoadError: no safetensors file, a shard missing or damaged, a tensor not where the index
                says it is.
        """
        if is_gguf(directory):
            return cls._open_gguf(directory)
        if (directory / SINGLE).exists():
            file = SafetensorsFile(directory / SINGLE)
            tensors = {name: CheckpointTensor(name, file, entry) for name, entry in file.tensors.items()}
            return cls(directory, [file], tensors)
        if (directory / INDEX).exists():
            return cls._open_sharded(directory)
        raise ModelLoadError(
            f"{directory} has no weights: neither {SINGLE} nor {INDEX} exists, and {explain(directory)}"
        )

    @classmethod
    def _open_gguf(cls, path: Path) -> Checkpoint:
        architecture, described = find_architecture(read_contents(path))
        num_experts = described.integer("expert_count", 0)
        files = open_parts(path)
        tensors: dict[str, CheckpointTensor] = {}
        try:
            for file in files:
                for name, entry in file.tensors.items():
                    placed = place(name, architecture.blocks)
                    if placed is not None:
                        offset = architecture.norm_offset if placed.is_norm else 0.0
                        tensor = CheckpointTensor(name, file, entry, offset)
                        tensors |= tensor.of_experts(placed.name, num_experts)
                    elif name not in CONFIG_VECTORS:
                        raise ModelLoadError(
                            f"{file.path}: tensor {name!r} belongs to nothing that this architecture has"
                        )
        except BaseException:
            for file in files:
                file.close()
            raise
        return cls(path, files, tensors)

    @classmethod
    def _open_sharded(cls, directory: Path) -> Checkpoint:
        weight_map = _weight_map(directory)
        files: dict[str, SafetensorsFile] = {}
        try:
            for shard in sorted(set(weight_map.values())):
                files[shard] = SafetensorsFile(_existing_shard(directory, shard))
            tensors = {name: _locate(name, files[shard]) for name, shard in weight_map.items()}
        except BaseException:
            for file in files.values():
                file.close()
            raise
        # Tensors in a shard that the index does not name are listed too, to be reported as unexpected.
        for file in files.values():
            for name, entry in file.tensors.items():
                tensors.setdefault(name, CheckpointTensor(name, file, entry))
        return cls(directory, list(files.values()), tensors)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files:
            file.close()

    def __iter__(self) -> Iterator[CheckpointTensor]:
        return iter(self._tensors.values())

    def find(self, name: str, optional_prefix: str = "") -> CheckpointTensor | None:
        """Return a tensor by its name, with or without the prefix."""
        found = self._tensors.get(name)
        if found is None and optional_prefix and name.startswith(optional_prefix):
            found = self._tensors.get(name.removeprefix(optional_prefix))
        return found

    @property
    def file_names(self) -> str:
        """The names of the files, for errors."""
        first = self._files[0].path
        return str(first) if len(self._files) == 1 else f"{first} and {len(self._files) - 1} other shards"


def has_weights(directory: Path) -> bool:
    """Whether there are weight files with the expected names; their contents are not checked."""
    return (directory / SINGLE).exists() or (directory / INDEX).exists() or is_gguf(directory)


def stored_dtype(directory: Path) -> str:
    """Return the dtype of most of the weights, "float32", "bfloat16" or "float16", or "" without weights.

    Raises:
        ModelLoadError: the checkpoint is damaged.
    """
    if not has_weights(directory):
        return ""
    sizes = dict.fromkeys(_DTYPE_NAMES, 0)
    with Checkpoint.open(directory) as checkpoint:
        for tensor in checkpoint:
            if tensor.entry.dtype in sizes:
                sizes[tensor.entry.dtype] += tensor.entry.num_bytes
    return _DTYPE_NAMES[max(sizes, key=lambda name: sizes[name])]


def _weight_map(directory: Path) -> dict[str, str]:
    """Return tensor name -> shard name of the index, every shard name a plain file name."""
    index = read_fields(directory / INDEX)
    entries = index.nested("weight_map")
    if entries is None:
        raise index.error("weight_map", "is missing")
    weight_map = entries.text_items()
    shards = set(weight_map.values())
    if not 1 <= len(shards) <= MAX_SHARDS:
        raise index.error("weight_map", f"must name 1 to {MAX_SHARDS} files, got {len(shards)}")
    for shard in shards:
        # A separator or a leading dot could escape the directory.
        if not _SHARD_NAME.fullmatch(shard):
            raise index.error(
                "weight_map", f"names the file {shard[:200]!r}, which is not a plain *.safetensors name"
            )
    return weight_map


def _existing_shard(directory: Path, shard: str) -> Path:
    path = directory / shard
    if not path.is_file():
        raise ModelLoadError(f"shard {path} is missing, but {INDEX} lists it")
    return path


def _locate(name: str, file: SafetensorsFile) -> CheckpointTensor:
    entry = file.tensors.get(name)
    if entry is None:
        raise ModelLoadError(
            f"tensor {name[:200]!r} is missing from {file.path}, where it should be according to {INDEX}"
        )
    return CheckpointTensor(name, file, entry)
