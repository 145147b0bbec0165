"""Adapters as a user of the OpenAI SDK meets them: named like models, loaded and unloaded meanwhile."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from openai import BadRequestError, NotFoundError, OpenAI, PermissionDeniedError
from safetensors.torch import load_file, save_file

from splitserve import LLM, SamplingParams
from tests.system.processes import Server, serve, serve_command, wait_ready

pytestmark = pytest.mark.system

DEMO = Path(__file__).resolve().parents[2] / "engine_core" / "demo_model"
PROMPT = "What is the capital of France?"


def write_adapter(folder: Path, seed: int, *, rank: int = 8, width: int = 0) -> Path:
    """Deltas of the demo model's attention that change what it says; or of other inputs than it has."""
    generator = torch.Generator().manual_seed(seed)
    weights = load_file(DEMO / "model.safetensors")
    tensors = {}
    for name, weight in weights.items():
        if name.endswith((".q_proj.weight", ".v_proj.weight", ".o_proj.weight")):
            outputs, inputs = weight.shape
            start = f"base_model.model.{name.removesuffix('.weight')}.lora_"
            tensors[f"{start}A.weight"] = (
                torch.randn(rank, width or inputs, generator=generator) * inputs**-0.5
            )
            tensors[f"{start}B.weight"] = torch.randn(outputs, rank, generator=generator) * 0.2
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 16, "base_model_name_or_path": "demo"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sst-") as path:
        for seed, name in enumerate(("one", "two", "three")):
            write_adapter(Path(path) / "adapters" / name, seed)
        write_adapter(Path(path) / "adapters" / "wide", 9, rank=17)
        write_adapter(Path(path) / "adapters" / "other", 9, width=24)
        write_adapter(Path(path) / "outside", 9)
        yield Path(path)


@pytest.fixture(scope="module")
def adapted(folder: Path) -> Iterator[Server]:
    """One adapter in memory at a time, so that requests for others wait for theirs."""
    adapters = folder / "adapters"
    named = (f"one={adapters / 'one'}", f"two={adapters / 'two'}")
    flags = ("--lora", *named, "--lora-dir", str(adapters), "--max-loras", "1", "--num-blocks", "512")
    with serve(folder, flags) as running:
        yield running


@pytest.fixture
def sdk(adapted: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=adapted.base_url, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def complete(sdk: OpenAI, model: str) -> str:
    return sdk.completions.create(model=model, prompt=PROMPT, max_tokens=24, temperature=0).choices[0].text


def load(sdk: OpenAI, name: str, path: str) -> httpx.Response:
    body = {"lora_name": name, "lora_path": path}
    return sdk.post("/load_lora_adapter", body=body, cast_to=httpx.Response)


def unload(sdk: OpenAI, name: str) -> httpx.Response:
    return sdk.post("/unload_lora_adapter", body={"lora_name": name}, cast_to=httpx.Response)


def test_adapters_are_listed_beside_their_model_and_served_by_name(sdk: OpenAI, folder: Path) -> None:
    base, *adapters = sdk.models.list().data
    parents = {each.id: each.model_dump()["parent"] for each in (base, *adapters)}
    assert parents == {base.id: None, "one": base.id, "two": base.id}
    assert sdk.models.retrieve("two").model_dump()["parent"] == base.id
    texts = {name: complete(sdk, name) for name in parents}
    assert len(set(texts.values())) == 3
    # Each in its turn, since there is room for one of them.
    assert {name: complete(sdk, name) for name in reversed(parents)} == texts
    chat = sdk.chat.completions.create(
        model="one", messages=[{"role": "user", "content": PROMPT}], max_tokens=8, stream=True
    )
    assert {chunk.model for chunk in chat} == {"one"}
    with LLM(lora={"one": str(folder / "adapters" / "one")}, num_threads=1, use_tqdm=False) as llm:
        params = SamplingParams(temperature=0, max_tokens=24)
        outputs = llm.generate([PROMPT] * 2, params, use_tqdm=False, lora=[None, "one"])
    assert [output.outputs[0].text for output in outputs] == [texts[base.id], texts["one"]]


def test_an_adapter_comes_and_goes_while_the_server_runs(sdk: OpenAI) -> None:
    before = complete(sdk, "one")
    with pytest.raises(NotFoundError):
        complete(sdk, "three")
    load(sdk, "three", "three")
    text = complete(sdk, "three")
    assert text != before
    with pytest.raises(BadRequestError, match="unload it first"):
        load(sdk, "three", "one")
    unload(sdk, "three")
    with pytest.raises(NotFoundError):
        complete(sdk, "three")
    with pytest.raises(NotFoundError):
        unload(sdk, "three")
    # Under the same name, with other files: nothing of what was cached before.
    load(sdk, "three", "one")
    assert complete(sdk, "three") == before
    unload(sdk, "three")


def test_what_cannot_be_loaded_is_refused_with_the_reason(sdk: OpenAI, folder: Path) -> None:
    for path, reason in (
        ("wide", "rank 17, at most 16 is served"),
        ("other", "has shape"),
        ("nowhere", "is no adapter"),
    ):
        with pytest.raises(BadRequestError, match=reason):
            load(sdk, "bad", path)
    for path in (str(folder / "outside"), "../outside"):
        with pytest.raises(PermissionDeniedError, match="out of the folder"):
            load(sdk, "bad", path)
    assert "bad" not in {each.id for each in sdk.models.list().data}


def test_a_stream_on_an_adapter_that_was_loaded_meanwhile_outlives_its_engine(folder: Path) -> None:
    flags = ("--lora-dir", str(folder / "adapters"), "--num-blocks", "512")
    with serve_command(folder / "serve.log", *flags, runtime_dir=str(folder)) as (url, server):
        wait_ready(url, server)
        with OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=60) as sdk:
            load(sdk, "three", "three")
            longer = {"ignore_eos": True, "temperature": 0}
            whole = sdk.completions.create(model="three", prompt=PROMPT, max_tokens=600, extra_body=longer)
            stream = sdk.completions.create(
                model="three", prompt=PROMPT, max_tokens=600, extra_body=longer, stream=True
            )
            chunks = iter(stream)
            texts = [next(chunks).choices[0].text]
            commands = {" ".join(each.cmdline()): each for each in server.children()}
            (engine,) = (
                each
                for command, each in commands.items()
                if "engine_core.cli" in command and "--standby-fd" not in command
            )
            engine.send_signal(signal.SIGKILL)
            texts += [chunk.choices[0].text for chunk in chunks]
            assert "".join(texts) == whole.choices[0].text
            wait_ready(url, server)
            assert "three" in {each.id for each in sdk.models.list().data}
    assert "killed by SIGKILL" in server.text()
    assert not list(folder.rglob("*.adapters"))
