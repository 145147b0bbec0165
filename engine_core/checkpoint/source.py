"""Where a model's files are: in this package, a directory or GGUF file, or on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.gguf.gguf_file import is_gguf
from splitserve.engine_core.checkpoint.hub import LOCAL_HINT, HubName, download, parse_hub_name
from splitserve.engine_core.errors import ModelLoadError

DEMO_MODEL = Path(__file__).parents[1] / "demo_model"


def resolve_model(name: str) -> Path:
    """Return the directory or GGUF file of a model, downloading it first if it is a hub id.

    What exists under that name takes precedence over a hub id. Downloads show the progress bars of
    huggingface_hub, and files already in its cache are not downloaded again.

    Args:
        name: "" for the demo model, a directory, a GGUF file, or a hub id such as "Qwen/Qwen3-0.6B"; one file
            of a repository is "Qwen/Qwen3-0.6B-GGUF:Q8_0" or "Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf".

    Raises:
        ModelLoadError: there is no such model, or it cannot be reached; the message names it.
    """
    return local_model(name) or download(_hub_name(name))


def local_model(name: str) -> Path | None:
    """Return the directory or GGUF file of a local model, None for a hub id.

    Raises:
        ModelLoadError: the name is neither.
    """
    if not name:
        return _demo_model()
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve()
    if is_gguf(path):
        # Not resolved: the hub's cache holds links whose targets have no telling names.
        return path.absolute()
    if path.exists():
        raise ModelLoadError(f"model {name!r} is a file, neither a directory nor in GGUF. {LOCAL_HINT}")
    _hub_name(name)
    return None


def _hub_name(name: str) -> HubName:
    found = parse_hub_name(name)
    if found is None:
        raise ModelLoadError(
            f"model {name!r} is neither an existing directory nor a hub id like 'owner/name'"
        )
    return found


def _demo_model() -> Path:
    if not (DEMO_MODEL / "config.json").is_file():
        raise ModelLoadError(f"the demo model is missing from this installation ({DEMO_MODEL}); name a model")
    return DEMO_MODEL
