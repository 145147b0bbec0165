"""The page's files: what is sent, to whom, with which headers; and that the package has all that it names."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from splitserve.frontend.http.api_keys import hash_key
from splitserve.frontend.page.assets import STATIC, load_assets
from tests.frontend.http.app_fixtures import ClientFactory

ROOT = Path(__file__).resolve().parents[3]
KEY = "sk-a-key-of-tests"


async def test_the_page_and_its_files_need_no_key_and_the_api_does(make_client: ClientFactory) -> None:
    client = make_client(api_key_hashes=(hash_key(KEY),))
    for name in ("/", "/page/js/main.js", "/page/css/theme.css", "/page/icon.svg"):
        assert (await client.get(name)).status_code == 200
        assert (await client.head(name)).status_code == 200
    for name in ("/v1/models", "/debug/engines", "/metrics", "/page/none.js", "/page/../routes.py", "/page"):
        assert (await client.get(name)).status_code == 401


@pytest.mark.parametrize("name", ["/", "/page/js/main.js", "/page/vendor/dompurify.js"])
async def test_every_file_comes_with_a_policy_a_type_and_a_tag(client: httpx.AsyncClient, name: str) -> None:
    response = await client.get(name)
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-cache"
    kind = "text/html" if name == "/" else "text/javascript"
    assert response.headers["content-type"] == f"{kind}; charset=utf-8"
    again = await client.get(name, headers={"if-none-match": f'"other", {response.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == response.headers["etag"]


async def test_files_are_compressed_for_who_takes_that(client: httpx.AsyncClient) -> None:
    packed = await client.get("/page/vendor/markdown-it.js", headers={"accept-encoding": "gzip"})
    plain = await client.get("/page/vendor/markdown-it.js", headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.text == plain.text
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) / 2


async def test_what_is_not_a_file_of_the_page_does_not_exist(client: httpx.AsyncClient) -> None:
    for name in ("/page/none.js", "/page/index.html", "/page/%2e%2e/routes.py", "/page/"):
        response = await client.get(name)
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "not_found_error"


async def test_the_page_can_be_switched_off(make_client: ClientFactory) -> None:
    client = make_client(disable_page=True)
    assert (await client.get("/")).status_code == 404
    assert (await client.get("/page/js/main.js")).status_code == 404


async def test_behind_a_prefix_files_are_looked_for_there(make_client: ClientFactory) -> None:
    client = make_client(root_path="/llm")
    for path in ("/", "/llm/"):
        assert '<base href="/llm/">' in (await client.get(path)).text
    assert (await client.get("/llm/page/js/main.js")).status_code == 200


def test_the_document_has_no_script_or_style_of_its_own_and_names_files_that_exist() -> None:
    text = (STATIC / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|https?://", text) == []
    named = re.findall(r'(?:src|href)="page/([^"]+)"', text)
    assert named
    assert [name for name in named if name not in load_assets()] == []


def test_every_import_leads_to_a_file() -> None:
    for path in STATIC.rglob("js/**/*.js"):
        for name in re.findall(
            r'^(?:import|\} from|import .* from) *"([^"]+)"', path.read_text(), re.MULTILINE
        ):
            assert (path.parent / name).resolve().is_file(), f"{path.name} imports {name}"


def test_each_library_of_others_is_listed_with_its_licence() -> None:
    vendor = STATIC / "vendor"
    listed = (vendor / "README.md").read_text()
    for path in vendor.glob("*.js"):
        assert f"`{path.name}`" in listed
    versions = re.findall(
        r"^(?:MARKDOWN_IT|DOMPURIFY|HIGHLIGHT)=(.+)$", (ROOT / ".ci/page-libraries").read_text(), re.M
    )
    assert len(versions) == 3
    assert all(f"| {version} |" in listed for version in versions)
    assert len(list(vendor.glob("*.LICENSE.txt"))) == 3
