"""Files as a user of OpenAI's SDK meets them, and forms that no SDK sends."""

from __future__ import annotations

import httpx
import pytest
from openai import APIStatusError, BadRequestError, NotFoundError

from tests.frontend.batches.conftest import ClientFactory
from tests.frontend.http.app_fixtures import ServerFactory

CONTENT = {"content-type": "multipart/form-data; boundary=b"}
PURPOSE = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
FILE = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n{}\r\n'
END = b"--b--\r\n"


async def test_a_file_comes_back_as_it_was_sent(make_sdk: ClientFactory) -> None:
    sdk = await make_sdk()
    # More than one piece, which does not end where chunks of the body do.
    data = bytes(range(256)) * 10_000 + b"the end"
    made = await sdk.files.create(file=("näme.jsonl", data), purpose="batch")
    assert (made.bytes, made.filename, made.purpose, made.object) == (
        len(data),
        "näme.jsonl",
        "batch",
        "file",
    )
    assert (await sdk.files.content(made.id)).content == data
    assert await sdk.files.retrieve(made.id) == made
    empty = await sdk.files.create(file=("empty", b""), purpose="batch")
    assert (empty.bytes, (await sdk.files.content(empty.id)).content) == (0, b"")
    assert [each.id async for each in sdk.files.list(limit=1)] == [empty.id, made.id]
    assert [each.id async for each in sdk.files.list(order="asc", purpose="batch")] == [made.id, empty.id]
    assert [each async for each in sdk.files.list(purpose="batch_output")] == []
    assert (await sdk.files.delete(made.id)).deleted
    for asked in (sdk.files.retrieve(made.id), sdk.files.content(made.id), sdk.files.delete(made.id)):
        with pytest.raises(NotFoundError) as caught:
            await asked
        assert caught.value.code == "file_not_found"


async def test_a_file_expires_as_its_upload_says(make_sdk: ClientFactory) -> None:
    sdk = await make_sdk(file_ttl_s=7200)
    plain = await sdk.files.create(file=b"{}", purpose="batch")
    assert plain.expires_at is not None
    assert abs(plain.expires_at - plain.created_at - 7200) <= 1
    made = await sdk.files.create(
        file=b"{}", purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert made.expires_at is not None
    assert abs(made.expires_at - made.created_at - 3600) <= 1
    with pytest.raises(BadRequestError) as caught:
        await sdk.files.create(
            file=b"{}", purpose="batch", expires_after={"anchor": "created_at", "seconds": 60}
        )
    assert caught.value.param == "expires_after.seconds"


async def test_a_file_that_is_too_large_is_refused_and_leaves_nothing(make_sdk: ClientFactory) -> None:
    sdk = await make_sdk(max_file_bytes=100_000, file_store_bytes=2**20)
    for size in (100_001, 400_000):
        with pytest.raises(APIStatusError) as caught:
            await sdk.files.create(file=b"x" * size, purpose="batch")
        assert caught.value.status_code == 413
    for _ in range(10):
        await sdk.files.create(file=b"x" * 100_000, purpose="batch")
    with pytest.raises(APIStatusError) as caught:
        await sdk.files.create(file=b"x" * 100_000, purpose="batch")
    assert (caught.value.status_code, caught.value.code) == (413, "file_store_full")
    assert len([each async for each in sdk.files.list()]) == 10


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (PURPOSE + FILE + END, CONTENT, 200, ""),
        (FILE + PURPOSE + END, CONTENT, 200, ""),
        (FILE + END, CONTENT, 400, "purpose is missing"),
        (PURPOSE + END, CONTENT, 400, "file is missing"),
        (PURPOSE + FILE + FILE + END, CONTENT, 400, "file must be given once"),
        (PURPOSE.replace(b"batch", b"assistants") + FILE + END, CONTENT, 400, "purpose may only be"),
        (PURPOSE.replace(b"purpose", b"colour") + FILE + END, CONTENT, 400, "colour"),
        (PURPOSE + FILE, CONTENT, 400, "before its last boundary"),
        (b"no form", CONTENT, 400, "cannot be read"),
        (b"", CONTENT, 400, "before its last boundary"),
        (PURPOSE.replace(b"batch", b"x" * 70_000) + FILE + END, CONTENT, 400, "beside its file"),
        (PURPOSE * 17 + FILE + END, CONTENT, 400, "more than 16 parts"),
        (FILE + END, {"content-type": "multipart/form-data"}, 400, "boundary"),
        (b"{}", {"content-type": "application/json"}, 415, "multipart/form-data"),
    ],
)
async def test_a_form_is_read_or_refused(
    make_server: ServerFactory,
    tmp_path: object,
    body: bytes,
    headers: dict[str, str],
    status: int,
    words: str,
) -> None:
    url = await make_server(file_store=f"{tmp_path}/files.db", max_file_bytes=2**20)
    async with httpx.AsyncClient(base_url=url) as client:
        answer = await client.post("/v1/files", content=body, headers=headers)
        assert answer.status_code == status, answer.text
        assert words in answer.text
        assert len((await client.get("/v1/files")).json()["data"]) == (status == 200)


async def test_a_server_without_a_store_says_so(make_sdk: ClientFactory) -> None:
    sdk = await make_sdk(file_store="none")
    for asked in (sdk.files.create(file=b"{}", purpose="batch"), sdk.files.list(), sdk.batches.list()):
        with pytest.raises(NotFoundError) as caught:
            await asked
        assert caught.value.code == "no_file_store"
        assert "--file-store" in caught.value.message
