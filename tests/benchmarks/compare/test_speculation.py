"""What is asked for, of whom, and what the table says of it."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.compare.engines import ENGINES
from benchmarks.compare.processes import EngineError
from benchmarks.compare.speculation import METHODS, Comparison, Prompts, arguments
from benchmarks.perplexity import DEMO_MODEL
from training.long_texts import TEXTS

ROOT = Path("root")


@pytest.mark.parametrize("name", ["splitserve", "vllm"])
def test_a_server_is_told_who_drafts(name: str) -> None:
    asked = [arguments(ENGINES[name], ROOT, method) for method in METHODS]
    assert asked[0] == []
    flags, values = zip(*asked[1:], strict=True)
    assert set(flags) == {"--speculative-config"}
    fields = [json.loads(value) for value in values]
    assert [each["method"] for each in fields] == ["ngram", "draft_model", "eagle3"]
    assert [each.get("model") for each in fields[1:]] == [
        "root/models/demo-quarter",
        "root/models/demo-head",
    ]


@pytest.mark.parametrize("name", ["vllm", "llamacpp-bf16"])
def test_splitserve_alone_quantizes_what_drafts(name: str) -> None:
    _flag, value = arguments(ENGINES["splitserve"], ROOT, "draft-int4")
    assert json.loads(value) | {"method": "draft_model", "quantization": "int4"} == json.loads(value)
    with pytest.raises(EngineError, match="weights of its checkpoint"):
        arguments(ENGINES[name], ROOT, "draft-int4")


def test_llama_cpp_drafts_from_its_own_files_and_has_no_head() -> None:
    engine = ENGINES["llamacpp-q8_0"]
    asked = arguments(engine, ROOT, "draft")
    assert "root/models/demo-quarter/demo-quarter-q8_0.gguf" in asked
    with pytest.raises(EngineError, match="head"):
        arguments(engine, ROOT, "eagle")


def test_a_text_to_edit_has_some_wrong_words_and_no_prompt_comes_twice() -> None:
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    prompts = Prompts(tokenizer, 3)
    edits = [tokenizer.decode(prompts.take("edit")) for _ in range(3)]
    for said in edits:
        given = said.split("assistant\n")[1].split("\nuser\n")[0].split(" ")
        best = max(
            (sum(a == b for a, b in zip(given, text.split(" "), strict=False)), text) for _, text in TEXTS
        )
        assert 0.9 * len(given) <= best[0] < len(given) == len(best[1].split(" "))
    answers = [tokenizer.decode(prompts.take("answer")) for _ in range(3)]
    assert len({*edits, *answers}) == 6
    assert all(said.endswith("assistant\n") for said in (*edits, *answers))


def test_ratios_are_those_of_turns_side_by_side() -> None:
    comparison = Comparison(ROOT, Namespace())
    comparison.rates = {("ours", "edit", "none"): [10.0, 20.0], ("ours", "edit", "ngram"): [30.0, 40.0]}
    comparison.num_different = {("ours", "edit", "none"): 0, ("ours", "edit", "ngram"): 1}
    assert comparison.report().splitlines()[2:] == [
        "| ours, none | edit | 15.0 | 1.00 (1.00 to 1.00) | 0 |",
        "| ours, ngram | edit | 35.0 | 2.50 (2.00 to 3.00) | 1 |",
    ]


def test_without_servers_that_do_not_draft_there_is_no_ratio() -> None:
    comparison = Comparison(ROOT, Namespace())
    comparison.rates = {("ours", "edit", "ngram"): [30.0, 40.0]}
    comparison.num_different = {("ours", "edit", "ngram"): 0}
    assert comparison.report().splitlines()[2:] == ["| ours, ngram | edit | 35.0 |  |  |"]
