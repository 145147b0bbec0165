"""Do the Python examples of each page run on the demo model, and print what stands beside them?"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.examples import PAGES, blocks, reason_not_run
from tests.system.processes import Server, serve

pytestmark = pytest.mark.system

SHOWN = re.compile(r"^print\(.*\)  # (.+)$", re.MULTILINE)
ADDRESS = re.compile(r"http://(127\.0\.0\.1|localhost):8000")
# Names that examples have for the model, beside its own.
MODELS = ("splitserve-demo", "demo", "Qwen/Qwen3-0.6B")
CHECKPOINT = 'LLM("path/to/checkpoint")'

RUN = {
    page.name: run
    for page in PAGES
    if (run := [each for each in blocks(page) if each.language == "python" and not reason_not_run(each)])
}


@pytest.fixture(scope="module")
def example_server() -> Iterator[Server]:
    """The demo model under all names, with the stores that `splitserve serve` has."""
    with tempfile.TemporaryDirectory(prefix="sst-") as path:
        stores = (f"--response-store={path}/responses.db", f"--file-store={path}/files.db")
        with serve(Path(path), ("--served-model-name", *MODELS), stores) as running:
            yield running


# OpenAI's SDK has no type for what the user said in a compacted conversation, and says so as it sends it.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("page", RUN)
def test_the_examples_of_a_page_run(page: str, example_server: Server) -> None:
    names: dict[str, object] = {"__name__": "example"}
    printed = StringIO()
    try:
        for block in RUN[page]:
            code = ADDRESS.sub(example_server.url, block.code).replace(CHECKPOINT, "LLM()")
            with redirect_stdout(printed):
                exec(compile(code, f"{block.page}:{block.line}", "exec"), names)
    finally:
        for client in names.values():
            if isinstance(client, Anthropic | OpenAI):
                client.close()
    shown = [line for block in RUN[page] for line in SHOWN.findall(block.code)]
    assert [line for line in printed.getvalue().splitlines() if line in shown] == shown


def test_pages_with_examples_are_run() -> None:
    assert {"README.md", "offline.md", "responses.md", "structured-outputs.md", "anthropic.md"} <= set(RUN)
