"""Which directory a model name leads to, without any network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

from splitserve.engine_core.checkpoint import source as model_source
from splitserve.engine_core.checkpoint.source import resolve_model
from splitserve.engine_core.errors import ModelLoadError


def fail_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def download(name: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)


def without_init(kind: type[Exception]) -> Exception:
    # The constructors of these errors want a real HTTP response.
    return kind.__new__(kind)


def test_an_existing_directory_is_taken_as_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("owner/name") == tmp_path / "owner" / "name"


def test_the_empty_name_is_the_demo_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(model_source, "DEMO_MODEL", tmp_path)
    assert resolve_model("") == tmp_path


def test_a_missing_demo_model_is_said_to_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_source, "DEMO_MODEL", tmp_path / "none")
    with pytest.raises(ModelLoadError, match="demo model is missing"):
        resolve_model("")


def test_a_file_that_is_not_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGML")
    with pytest.raises(ModelLoadError, match=r"model\.gguf' is a file, neither a directory nor in GGUF"):
        resolve_model(str(path))


def test_a_gguf_file_keeps_its_name_behind_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "blob").write_bytes(b"GGUF")
    (tmp_path / "model.gguf").symlink_to(tmp_path / "blob")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("model.gguf") == tmp_path / "model.gguf"


FILES = [
    "README.md",
    "m-Q4_K_M.gguf",
    "m-IQ4_K_M.gguf",
    "m-Q8_0-00001-of-00002.gguf",
    "m-Q8_0-00002-of-00002.gguf",
]


@pytest.mark.parametrize("asked", ["Q4_K_M", "q4_k_m", "m-Q4_K_M.gguf"])
def test_a_file_of_a_repository_is_named_whole_or_by_its_quantization(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(repository: str, file: str) -> str:
        return str(tmp_path / repository / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda repository: FILES)
    assert resolve_model(f"owner/name:{asked}") == tmp_path / "owner/name/m-Q4_K_M.gguf"


@pytest.mark.parametrize("asked", ["Q8_0", "m-Q8_0-00001-of-00002.gguf"])
def test_a_model_in_several_files_is_downloaded_whole(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloaded: list[str] = []

    def download(repository: str, file: str) -> str:
        downloaded.append(file)
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda repository: FILES)
    assert resolve_model(f"owner/name:{asked}") == tmp_path / FILES[3]
    assert downloaded == FILES[3:]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("Q2_K", "has 0 GGUF files called 'Q2_K'"),
        ("K_M", "has 0 GGUF files"),
    ],
)
def test_a_quantization_that_no_file_or_several_have_is_refused(
    asked: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda repository: FILES)
    with pytest.raises(ModelLoadError, match=message) as raised:
        resolve_model(f"owner/name:{asked}")
    assert "m-Q4_K_M.gguf" in str(raised.value)


@pytest.mark.parametrize(
    "name", ["/no/such/dir", "./no-such-dir", "a/b/c", "../x", "owner/na me", "-x", "a/b:../c", "a/b:"]
)
def test_what_can_be_no_hub_id_is_not_asked_of_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    fail_with(monkeypatch, AssertionError("the hub was asked"))
    with pytest.raises(ModelLoadError, match="neither an existing directory nor a hub id"):
        resolve_model(name)


def test_a_hub_id_is_downloaded_without_pickles_and_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, list[str], list[str]]] = []

    def download(name: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        asked.append((name, allow_patterns, ignore_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("owner/name") == tmp_path
    [(name, allowed, ignored)] = asked
    files = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer.model",
        "qwen.tiktoken",
        "merges.txt",
        "vocab.txt",
        "chat_template.jinja",
        "pytorch_model.bin",
        "modeling_custom.py",
        "consolidated.safetensors",
        "original/params.json",
    ]
    taken = list(
        huggingface_hub.utils.filter_repo_objects(files, allow_patterns=allowed, ignore_patterns=ignored)
    )
    assert name == "owner/name"
    assert taken == files[:9]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (without_init(LocalEntryNotFoundError), "offline or cannot be reached"),
        (without_init(RepositoryNotFoundError), "does not exist"),
        (without_init(GatedRepoError), "licence"),
        (OSError("disk full"), "could not be downloaded: disk full"),
        (RuntimeError(""), "could not be downloaded: RuntimeError"),
    ],
)
def test_a_failed_download_names_the_model_the_reason_and_the_way_out(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, error)
    with pytest.raises(ModelLoadError, match=words) as raised:
        resolve_model("owner/name")
    assert "'owner/name'" in str(raised.value)
    assert "local directory" in str(raised.value)


def test_offline_the_real_library_leads_to_the_same_message(tmp_path: Path) -> None:
    program = (
        "from splitserve.engine_core.checkpoint.source import resolve_model; resolve_model('owner/name')"
    )
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "ModelLoadError: model 'owner/name' is not in the local cache" in done.stderr
