"""Requests are sent until each has an answer; what cannot be answered now has no line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from splitserve.client.batch import run as run_module
from splitserve.client.batch.answers import AnswerFile
from splitserve.client.batch.requests import BatchFile
from splitserve.client.batch.run import BatchRun
from splitserve.client.http.errors import ApiError
from splitserve.engine_core.batch_lines.retries import wait_s
from tests.client.scripted_server import Script, answer, scripted

OK = answer("200 OK", b'{"n":\n 1}')
BUSY = answer("429 Too Many Requests", b"{}", "Retry-After: 1")


async def ran(
    script: Script, folder: Path, num_requests: int = 3, model: str = ""
) -> tuple[ApiError | None, list[dict[str, object]]]:
    lines = [{"custom_id": f"r{i}", "url": "/v1/x", "body": {"model": "m"}} for i in range(num_requests)]
    (folder / "in").write_text("\n".join(map(json.dumps, lines)))
    requests, answers = BatchFile(folder / "in"), AnswerFile(folder / "out")
    async with scripted(script) as api:
        run = BatchRun(api, requests, answers, model=model, max_retries=2, on_answer=lambda: None)
        fault = await run.run(2)
    requests.close()
    answers.close()
    return fault, [json.loads(line) for line in (folder / "out").read_text().splitlines()]


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "wait_s", lambda *_: 0.0)


async def test_every_request_has_one_answer_on_one_line(tmp_path: Path) -> None:
    asked = []
    fault, answers = await ran(lambda request: [asked.append(request) or OK], tmp_path, model="other")
    assert fault is None
    assert sorted(str(each["custom_id"]) for each in answers) == ["r0", "r1", "r2"]
    assert answers[0]["response"]["body"] == {"n": 1}  # type: ignore[index]
    assert answers[0]["error"] is None
    assert asked[0].head.startswith("POST /v1/x ")
    assert {json.loads(each.body)["model"] for each in asked} == {"other"}


async def test_what_passes_is_tried_again_and_a_refusal_is_an_answer(tmp_path: Path) -> None:
    pieces = iter([[BUSY], [], [answer("400 Bad Request", b'{"error": {"message": "bad"}}')], [BUSY]])
    fault, answers = await ran(lambda _: next(pieces, [OK]), tmp_path)
    assert fault is None
    statuses = sorted(each["response"]["status_code"] for each in answers)  # type: ignore[index]
    assert statuses == [200, 200, 400]
    refused = next(each for each in answers if each["error"])
    assert refused["error"] == {"code": "request_refused", "message": "400: bad"}


async def test_what_does_not_pass_has_no_line_and_can_be_asked_later(tmp_path: Path) -> None:
    fault, answers = await ran(lambda _: [BUSY], tmp_path)
    assert fault is not None
    assert fault.status == 429
    assert answers == []
    fault, answers = await ran(lambda _: [OK], tmp_path)
    assert (fault, len(answers)) == (None, 3)


async def test_a_wrong_key_ends_the_run_and_is_no_answer(tmp_path: Path) -> None:
    asked = []
    fault, answers = await ran(
        lambda request: [asked.append(request) or answer("401 Unauthorized", b"{}")],
        tmp_path,
        num_requests=50,
    )
    assert fault is not None
    assert answers == []
    assert len(asked) <= 2


def test_waits_grow_to_a_bound_and_heed_the_server() -> None:
    rng = random.Random(1)
    waits = [wait_s(num, 0.0, rng) for num in range(1, 12)]
    assert all(0.25 * 2 ** min(i, 6) <= wait <= 45 for i, wait in enumerate(waits[:6]))
    assert max(waits) <= 45
    assert 7 <= wait_s(1, 7.0, rng) <= 10.5
