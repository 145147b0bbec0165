"""How a model is brought from the Hugging Face hub: a whole repository, or one GGUF file of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from splitserve.engine_core.errors import ModelLoadError

LOCAL_HINT = (
    "A local directory with config.json, *.safetensors and tokenizer.json works too, and so does a GGUF file."
)
# The files that serving needs. Pickle weights, other frameworks' weights and code are not downloaded.
_VOCABULARIES = [
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "spiece.model",
    "tiktoken.model",
    "qwen.tiktoken",
]
_ALLOWED = ["*.safetensors", "*.json", "*.jinja", *_VOCABULARIES, "merges.txt", "vocab.txt"]
# Duplicates of the weights, in the publishers' own layouts.
_IGNORED = ["consolidated*", "original/*", "onnx/*", "openvino/*", "metal/*"]
_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}"
_HUB_ID = re.compile(
    rf"(?P<repository>{_PART}(?:/{_PART})?)(?::(?P<file>[A-Za-z0-9_][A-Za-z0-9._/-]{{0,200}}))?"
)
_SUFFIX = ".gguf"
_PART_ENDING = re.compile(r"-00001-of-(?P<count>[0-9]{5})\.gguf\Z")


class HubName(NamedTuple):
    """A model on the hub.

    Attributes:
        repository: such as "Qwen/Qwen3-0.6B".
        file: a GGUF file of it, or a part of its name such as "Q4_K_M"; "" for the whole repository.
    """

    repository: str
    file: str


def parse_hub_name(name: str) -> HubName | None:
    """Return what a name means on the hub: OWNER/NAME, or OWNER/NAME:FILE; None if it can be neither."""
    match = _HUB_ID.fullmatch(name)
    if match is None or ".." in (match["file"] or "").split("/"):
        return None
    return HubName(match["repository"], match["file"] or "")


def download(name: HubName) -> Path:
    """Return the directory of a repository in the local cache, or the GGUF file, downloading what is missing.

    Raises:
        ModelLoadError: it cannot be reached, or does not exist; the message names it.
    """
    return _explained(name, (lambda: _download_file(name)) if name.file else (lambda: _download_all(name)))


def _download_all(name: HubName) -> Path:
    # Imported here because the import takes longer than the rest of the start.
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name.repository, allow_patterns=_ALLOWED, ignore_patterns=_IGNORED))


def _download_file(name: HubName) -> Path:
    from huggingface_hub import hf_hub_download, list_repo_files

    file = name.file
    if not file.endswith(_SUFFIX):
        file = choose_file(list_repo_files(name.repository), name)
    first, *_others = [Path(hf_hub_download(name.repository, part)) for part in all_parts(file)]
    return first


def all_parts(file: str) -> list[str]:
    """Return the files of a GGUF model whose first, or only, file has this name."""
    match = _PART_ENDING.search(file)
    if match is None:
        return [file]
    start, count = file[: match.start()], match["count"]
    return [f"{start}-{i:05}-of-{count}{_SUFFIX}" for i in range(1, int(count) + 1)]


def choose_file(files: Sequence[str], name: HubName) -> str:
    """Return the one GGUF file of a repository whose name ends with a quantization, in any case.

    Of a model in several files it is the first.

    Raises:
        ModelLoadError: there is none, or more than one.
    """
    ending = f"{name.file}{_SUFFIX}".lower()
    all_files = sorted(file for file in files if file.endswith(_SUFFIX))
    found = [
        file
        for file in all_files
        if (lowered := _PART_ENDING.sub(_SUFFIX, file).lower()).endswith(ending)
        and (lowered == ending or lowered[-len(ending) - 1] in "-./")
    ]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(all_files[:20]) or "none"
    raise ModelLoadError(
        f"model {name.repository!r} has {len(found)} GGUF files called {name.file!r}, name one as "
        f"{name.repository}:FILE. Its GGUF files: {shown}"
    )


def _explained(name: HubName, fetch: Callable[[], Path]) -> Path:
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return fetch()
    except ModelLoadError:
        raise
    except GatedRepoError:
        problem = "needs its licence to be accepted on the hub, and a token (hf auth login, or HF_TOKEN)"
    except RepositoryNotFoundError:
        problem = "does not exist on the Hugging Face hub, or is private and needs a token (hf auth login)"
    except LocalEntryNotFoundError:
        problem = "is not in the local cache, and the Hugging Face hub is offline or cannot be reached"
    except EntryNotFoundError:
        problem = f"has no file {name.file!r} on the Hugging Face hub"
    except Exception as error:
        # The underlying HTTP library, and so its errors, differ between versions.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelLoadError(
            f"model {name.repository!r} could not be downloaded: {reason[:300]}. {LOCAL_HINT}"
        ) from error
    raise ModelLoadError(f"model {name.repository!r} {problem}. {LOCAL_HINT}")
