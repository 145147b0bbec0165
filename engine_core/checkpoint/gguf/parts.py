"""Which files make up a model that gguf-split has parted: NAME-00001-of-00003.gguf and others beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from splitserve.engine_core.errors import ModelLoadError

PART_NAME = re.compile(r"(?P<name>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)
_MAX_PARTS = 1024
_COUNT, _NUMBER, NUM_TENSORS = "split.count", "split.no", "split.tensors.count"


def other_parts(path: Path, metadata: Mapping[str, object]) -> list[Path]:
    """Return the files that belong to one, in order; none if it is a whole model.

    Args:
        path: of the file that was named.
        metadata: of that file.

    Raises:
        ModelLoadError: it is not the first part, has not the name of one, or another is missing.
    """
    count = _number(path, metadata, _COUNT, 1)
    if count <= 1:
        return []
    match = PART_NAME.fullmatch(path.name)
    if not 1 < count <= _MAX_PARTS or match is None or int(match["count"]) != count:
        raise ModelLoadError(
            f"{path}: metadata {_COUNT!r} says that it is one of {count} parts, so its name must end in "
            f"-00001-of-{count:05}.gguf, of at most {_MAX_PARTS}"
        )
    paths = [path.with_name(f"{match['name']}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    if int(match["number"]) != 1:
        raise ModelLoadError(f"{path} is part {int(match['number'])} of {count}: name the first, {paths[0]}")
    check_part(path, metadata, 0, count)
    for part in paths[1:]:
        if not part.is_file():
            raise ModelLoadError(f"{part} is missing: {path} says that there are {count} parts")
    return paths[1:]


def parts_beside(path: Path) -> list[Path]:
    """Return the files that, by their names, are other parts of the same model; those that exist."""
    match = PART_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) > _MAX_PARTS:
        return []
    names = [f"{match['name']}-{i:05}-of-{match['count']}.gguf" for i in range(1, int(match["count"]) + 1)]
    return [part for name in names if name != path.name and (part := path.with_name(name)).is_file()]


def check_part(path: Path, metadata: Mapping[str, object], number: int, count: int) -> None:
    """Check that a file is the part that its name says.

    Args:
        path: of the file.
        metadata: of it.
        number: from 0 on.
        count: of all parts.

    Raises:
        ModelLoadError: it is another one.
    """
    found = _number(path, metadata, _NUMBER, -1), _number(path, metadata, _COUNT, -1)
    if found != (number, count):
        raise ModelLoadError(
            f"{path}: metadata {_NUMBER!r} and {_COUNT!r} must be {number} and {count}, got {found[0]} and "
            f"{found[1]}"
        )


def check_total(path: Path, metadata: Mapping[str, object], num_tensors: int) -> None:
    """Check how many tensors all parts have together, if the first one says it.

    Raises:
        ModelLoadError: there are others.
    """
    said = _number(path, metadata, NUM_TENSORS, num_tensors)
    if said != num_tensors:
        raise ModelLoadError(
            f"{path}: its parts have {num_tensors} tensors, metadata {NUM_TENSORS!r} says {said}"
        )


def _number(path: Path, metadata: Mapping[str, object], key: str, default: int) -> int:
    value = metadata.get(key, default)
    if not isinstance(value, int):
        raise ModelLoadError(f"{path}: metadata {key!r} must be an integer, got {value!r:.100}")
    return value
