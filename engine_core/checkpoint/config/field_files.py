"""How a JSON file of a checkpoint becomes fields."""

from __future__ import annotations

import json
from pathlib import Path

from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.files import read_file
from splitserve.engine_core.errors import ModelLoadError

MAX_JSON_BYTES = 16 * 2**20


def read_fields(path: Path) -> Fields:
    """Read a JSON object from a file of at most 16 MiB.

    Raises:
        ModelLoadError: the file is missing, unreadable, too large or not a JSON object.
    """
    content = read_file(path, MAX_JSON_BYTES)
    if content is None:
        raise ModelLoadError(f"{path} does not exist")
    try:
        # The standard decoder accepts NaN and Infinity, so that the range check can name the field.
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelLoadError(f"{path} must contain a JSON object, got {type(values).__name__}")
    return Fields(values, str(path))
