"""Where a model's files are: the packaged demo model, a local directory, or a Hugging Face repository."""

from __future__ import annotations

import re
from pathlib import Path

from splitserve.engine_core.errors import ModelLoadError

DEMO_MODEL = Path(__file__).parents[1] / "demo_model"

# The files that serving needs. Pickle weights, other frameworks' weights and code are not downloaded.
_ALLOWED = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model"]
# Duplicates of the weights, in the publishers' own layouts.
_IGNORED = ["consolidated*", "original/*", "onnx/*", "openvino/*", "metal/*"]
_HUB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})?")
_LOCAL_HINT = "A local directory with config.json, *.safetensors and tokenizer.json works too."


def resolve_model(name: str) -> Path:
    """Return the directory of a model, downloading it first if it is a hub id.

    A directory of that name takes precedence over a hub id. Downloads show huggingface_hub's progress bars,
    and files already in its cache are not downloaded again.

    Args:
        name: "" for the demo model, a directory, or a hub id such as "Qwen/Qwen3-0.6B".

    Raises:
        ModelLoadError: there is no such model, or it cannot be reached; the message names it.
    """
    return local_model(name) or _download(name)


def local_model(name: str) -> Path | None:
    """Return the directory of a local model, None for a hub id.

    Raises:
        ModelLoadError: the name is neither.
    """
    if not name:
        return _demo_model()
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.exists():
        raise ModelLoadError(f"model {name!r} is a file, not a directory. {_LOCAL_HINT}")
    if not _HUB_ID.fullmatch(name):
        raise ModelLoadError(
            f"model {name!r} is neither an existing directory nor a hub id like 'owner/name'"
        )
    return None


def _demo_model() -> Path:
    if not (DEMO_MODEL / "config.json").is_file():
        raise ModelLoadError(f"the demo model is missing from this installation ({DEMO_MODEL}); name a model")
    return DEMO_MODEL


def _download(name: str) -> Path:
    # Imported here because the import takes longer than the rest of the start.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(name, allow_patterns=_ALLOWED, ignore_patterns=_IGNORED))
    except GatedRepoError:
        problem = "needs its licence to be accepted on the hub, and a token (hf auth login, or HF_TOKEN)"
    except RepositoryNotFoundError:
        problem = "does not exist on the Hugging Face hub, or is private and needs a token (hf auth login)"
    except LocalEntryNotFoundError:
        problem = "is not in the local cache, and the Hugging Face hub is offline or cannot be reached"
    except Exception as error:
        # The underlying HTTP library, and so its errors, differ between versions.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelLoadError(
            f"model {name!r} could not be downloaded: {reason[:300]}. {_LOCAL_HINT}"
        ) from error
    raise ModelLoadError(f"model {name!r} {problem}. {_LOCAL_HINT}")
