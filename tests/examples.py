"""The fenced blocks of the documentation, and which of them are not run, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


class Block(NamedTuple):
    """A fenced block.

    Attributes:
        page: path from the repository's root.
        line: of its first line of code, from 1.
        language: as the fence says; "" for drawings and what programs print.
        code: what it holds.
    """

    page: str
    line: int
    language: str
    code: str


# Python blocks that are only compiled: a page, the beginning of a line of the block, and why.
NOT_RUN = {
    ("docs/embeddings.md", ""): "needs an encoder; tests/system/test_encoder_sdk.py makes one",
    ("docs/lora.md", 'with LLM("/models/llama"'): "needs an adapter; tests/system/test_lora_sdk.py",
    ("docs/kv-events.md", "while True:"): "runs for ever; tests/system/test_kv_events.py runs it",
    (
        "docs/clients.md",
        "",
    ): "tests/system/clients/test_examples.py runs each with the package that it is about",
    ("docs/speculation.md", "llm = LLM(MODEL"): "a line of a program; tests/system/test_speculation_sdk.py",
}


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    name = str(page.relative_to(ROOT))
    return [
        Block(name, token.map[0] + 2, token.info.strip(), token.content)
        for token in tokens
        if token.type == "fence" and token.map
    ]


def reason_not_run(block: Block) -> str:
    """Why a Python block is not run, "" if it is."""
    for (page, beginning), reason in NOT_RUN.items():
        if page == block.page and any(line.startswith(beginning) for line in block.code.splitlines()):
            return reason
    return ""
