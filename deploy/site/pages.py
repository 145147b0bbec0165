"""Pages of the site that are not in docs/: those of the repository's root, and the Python reference."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
PUBLIC = (
    "splitserve.frontend.offline.llm.LLM",
    "splitserve.frontend.offline.async_llm.AsyncLLM",
    "splitserve.engine_core.sampling_params.SamplingParams",
    "splitserve.engine_core.sequence_sampling.RepetitionDetection",
    "splitserve.engine_core.structured_outputs.StructuredOutputs",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages; links in them lead to where the others are on the site."""
    for name, target in ROOT_PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, target, content=here(text)))
    files.append(File.generated(config, "reference.md", content=reference()))
    return files


def here(text: str) -> str:
    """A page of the root with its links as they are from docs/."""
    text = re.sub(r"\]\(docs/", "](", text)
    for name, target in ROOT_PAGES.items():
        text = text.replace(f"]({name}", f"]({target}")
    return text


def reference() -> str:
    """The page of the public classes, which mkdocstrings fills in."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    classes = "".join(f"\n::: {name}\n" for name in PUBLIC)
    return f"# Reference\n\nWhat `from splitserve import ...` has, in version {version}.\n{classes}"
