"""A YAML file of flags: read, and written with every default."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.setting import Declared

if TYPE_CHECKING:
    import yaml

MAX_FILE_BYTES = 2**20


def read_config_file(path: str, known: Collection[str]) -> dict[str, object]:
    """Return the values of a file by key, with underscores.

    Args:
        path: of the file.
        known: keys that it may have.

    Raises:
        ConfigError: it cannot be read, is no YAML mapping, or has another key or one twice.
    """
    import yaml

    try:
        with Path(path).expanduser().open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read --config {path}: {error.strerror}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"--config {path} is larger than 1 MiB")
    try:
        node = yaml.compose(raw, yaml.SafeLoader)
        pairs = _pairs(node, path)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"--config {path}: {' '.join(str(error).split())}") from None
    values: dict[str, object] = {}
    for name, value in pairs:
        key = name.replace("-", "_")
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise ConfigError(
                f"unknown key {name} in {path}" + (f", did you mean {near[0]}?" if near else "")
            )
        if key in values:
            raise ConfigError(f"{path} has {name} twice")
        values[key] = value
    return values


def _pairs(node: yaml.Node | None, path: str) -> list[tuple[str, Any]]:
    """Return keys and values as they stand; a mapping would keep the last of two equal keys."""
    import yaml

    if node is None:
        return []
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"--config {path} is no mapping of flags to values")
    # The constructor of a document that has been read already.
    maker = yaml.SafeLoader("")
    try:
        return [(str(key.value), maker.construct_object(value, deep=True)) for key, value in node.value]
    finally:
        maker.dispose()


def config_text(command: str, settings: Iterable[Declared]) -> str:
    """Return a file in which every flag of a command stands with its default, as a comment.

    Nothing in it is set: it tells the defaults, and does not keep them should a later version have others.
    """
    lines = [f"# Settings of `{command}`, for its --config. Remove the # before those to change.\n"]
    group = ""
    for each in settings:
        if each.setting.group != group:
            group = each.setting.group
            lines.append(f"\n# {group}\n")
        lines += _entry(each)
    return "".join(lines)


def _entry(each: Declared) -> list[str]:
    setting = each.setting
    allowed = ""
    if setting.choices:
        allowed = f" ({', '.join(setting.choices)})"
    elif setting.low is not None and setting.high is not None:
        allowed = f" ({setting.low:.15g} to {setting.high:.15g})"
    described = setting.default and f"; default: {setting.default}"
    return [f"\n# {setting.help}{allowed}{described}\n", f"#{each.keyword}:{_yaml_value(each)}\n"]


def _yaml_value(each: Declared) -> str:
    import yaml

    default = each.default
    if default is None or default == "":
        return ""
    if isinstance(default, tuple | list):
        default = list(default)
    text: str = yaml.safe_dump(default, default_flow_style=True, width=10**6)
    return " " + text.removesuffix("...\n").strip()
