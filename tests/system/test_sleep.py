"""An engine that sleeps under an open stream: the stream goes on with the same tokens."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import InternalServerError, OpenAI

from tests.system.processes import serve, wait_ready

pytestmark = pytest.mark.system

ADMIN = {"authorization": "Bearer an-admin-key"}
ASK = {"prompt": [1, 2, 3], "max_tokens": 60, "seed": 5, "temperature": 1, "extra_body": {"ignore_eos": True}}


@pytest.fixture
def url() -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sst-")))
        (folder / "keys").write_text("an-admin-key\n")
        simulated = ("--executor", "simulated", "--simulated-step-ms", "10")
        flags = ("--admin-key-file", str(folder / "keys"))
        yield stack.enter_context(serve(folder, simulated, flags)).url


def test_a_stream_outlasts_the_sleep_of_its_engine(url: str) -> None:
    with OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=60) as client:
        model = client.models.list().data[0].id
        expected = client.completions.create(model=model, **ASK).choices[0].text
        stream = client.completions.create(model=model, stream=True, **ASK)
        text = next(stream).choices[0].text
        assert httpx.post(f"{url}/sleep", headers=ADMIN).json() == {"is_sleeping": True}
        with pytest.raises(InternalServerError) as caught:
            client.completions.create(model=model, **ASK)
        assert (caught.value.status_code, caught.value.code) == (503, "engine_asleep")
        assert httpx.get(f"{url}/is_sleeping", headers=ADMIN).json() == {"is_sleeping": True}
        assert httpx.get(f"{url}/health").json()["status"] == "asleep"
        assert httpx.post(f"{url}/wake_up", headers=ADMIN).json() == {"is_sleeping": False}
        text += "".join(chunk.choices[0].text for chunk in stream)
        assert text == expected
        wait_ready(url)
        assert client.completions.create(model=model, **ASK).choices[0].text == expected
