"""The chat in a browser: streams, stop, versions, hostile text, conversations, keys."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from splitserve.frontend.http.api_keys import hash_key
from tests.frontend.page.browser import Site, Tab, new_tab, running_site

if TYPE_CHECKING:
    from playwright.async_api import Browser, Locator, Request, Route

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.system]
KEY = "sk-a-key-of-tests"
HOSTILE = """
<script>window.hacked = 1</script><img src=x onerror="window.hacked = 2">
[link](javascript:window.hacked=3) ![picture](https://example.invalid/spy.png) <svg onload="window.hacked=4">

| a | b |
|:-:|--:|
| <b onmouseover="window.hacked=5">x</b> | y |

```html
</code></pre><script>window.hacked = 6</script><style>body { display: none }</style>
```
<iframe srcdoc="<script>parent.hacked=7</script>"></iframe><a href="data:text/html,<script>1</script>">z</a>
"""


def answers(tab: Tab) -> Locator:
    return tab.page.get_by_role("article", name="Assistant")


def last_texts(site: Site) -> str:
    """The prompt of the last request, as the template of the fake pool has it."""
    return bytes(site.pool.seen[-1].request.prompt_token_ids).decode()


async def test_an_answer_appears_while_it_is_written_with_markdown_code_and_counts(tab: Tab) -> None:
    tab.site.answers.pieces = ["Some **bold** text", None, "\n\n```python\nprint(1)\n```\n\nThe end"]
    await tab.open()
    await tab.ask("Hello")
    await answers(tab).get_by_text("Some bold text").wait_for()
    assert await tab.page.get_by_role("button", name="Stop").is_visible()
    tab.site.answers.gate.set()
    await tab.page.get_by_role("button", name="Send", exact=True).wait_for()
    await tab.answered()
    answer = answers(tab)
    assert await answer.locator("strong").inner_text() == "bold"
    assert await answer.locator("pre code.hljs .hljs-built_in").inner_text() == "print"
    assert await answer.locator(".text > p").last.inner_text() == "The end"
    stats = await answer.locator(".stats").inner_text()
    assert "tokens/s" in stats
    assert "prompt" in stats
    assert last_texts(tab.site) == "user: Hello\nassistant: "


async def test_stop_ends_the_request_on_the_engine_and_keeps_what_has_come(tab: Tab) -> None:
    tab.site.answers.pieces = ["The beginning", None, "never"]
    await tab.open()
    await tab.ask("Hello")
    await answers(tab).get_by_text("The beginning").wait_for()
    await tab.page.get_by_role("button", name="Stop").click()
    await tab.site.pool.num_closed.wait()
    await answers(tab).get_by_text("Stopped by you").wait_for()
    assert await answers(tab).locator(".text").inner_text() == "The beginning"


async def test_text_of_a_model_cannot_become_script_style_or_a_request(tab: Tab) -> None:
    tab.site.answers.pieces = [HOSTILE]
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    await tab.open()
    await tab.ask("Be evil")
    await tab.answered()
    answer = answers(tab)
    assert await tab.page.evaluate("window.hacked") is None
    assert (
        await answer.locator(
            "script, style, iframe, svg:not(.icon), img, [onerror], [onload], [style]"
        ).count()
        == 0
    )
    links = await answer.locator(".text a").evaluate_all("links => links.map(link => link.href)")
    assert links == ["https://example.invalid/spy.png"]
    assert await answer.locator("th.to-center").count() == 1
    assert "<script>window.hacked = 6</script>" in await answer.locator("pre").inner_text()
    assert [url for url in asked if not url.startswith(tab.site.url)] == []


async def test_an_edit_and_another_answer_are_versions_that_can_be_gone_through(tab: Tab) -> None:
    await tab.open()
    await tab.ask("First")
    await tab.answered()
    tab.site.answers.pieces = ["Another"]
    await answers(tab).get_by_role("button", name="Answer again").click()
    await answers(tab).get_by_text("Another").wait_for()
    await answers(tab).get_by_text("2/2").wait_for()
    await answers(tab).get_by_role("button", name="Version before").click()
    await answers(tab).get_by_text("Hi there").wait_for()
    await tab.page.get_by_role("article", name="You").hover()
    await tab.page.get_by_role("button", name="Edit message").click()
    await tab.page.get_by_role("textbox", name="Edit message").fill("Second")
    await tab.page.keyboard.press("Enter")
    await answers(tab).get_by_text("Another").wait_for()
    await tab.answered()
    assert last_texts(tab.site) == "user: Second\nassistant: "
    await tab.reload()
    await answers(tab).get_by_text("Another").wait_for()
    assert await tab.page.get_by_role("article", name="You").get_by_text("2/2").count() == 1


async def test_system_prompt_and_sampling_are_sent_and_kept(tab: Tab) -> None:
    await tab.open()
    await tab.page.get_by_role("button", name="Settings of the answers").click()
    await tab.page.get_by_label("System prompt").fill("Be brief")
    await tab.page.get_by_label("Temperature").fill("0.5")
    await tab.page.get_by_label("Longest answer").fill("7")
    await tab.page.get_by_label("Functions, as JSON").fill("[1")
    await tab.page.get_by_label("Functions, as JSON").blur()
    await tab.page.get_by_text("The tools are not JSON").wait_for()
    await tab.page.get_by_label("Functions, as JSON").fill("")
    await tab.reload()
    await tab.ask("Hello")
    await tab.answered()
    sampling = tab.site.pool.seen[-1].request.sampling
    assert (sampling.temperature, sampling.max_tokens) == (0.5, 7)
    assert last_texts(tab.site).startswith("system: Be brief\nuser: Hello")


async def test_reasoning_and_calls_are_folded_and_a_result_goes_back(tab: Tab) -> None:
    function = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    call = {"index": 0, "id": "call-1", "type": "function", "function": function}
    deltas = [{"reasoning": "It asks for the weather."}, {"tool_calls": [call]}]
    bodies: list[dict[str, object]] = []

    async def answer(route: Route) -> None:
        bodies.append(route.request.post_data_json)
        chunks = [
            {"choices": [{"index": 0, "delta": delta}]}
            for delta in (deltas if len(bodies) == 1 else [{"content": "Cold"}])
        ]
        events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        await route.fulfill(content_type="text/event-stream", body="".join([*events, "data: [DONE]\n\n"]))

    await tab.page.route("**/v1/chat/completions", answer)
    await tab.open()
    await tab.ask("How is the weather in Oslo?")
    thought = tab.page.get_by_text("It asks for the weather.")
    await answers(tab).get_by_text("Reasoning", exact=True).wait_for()
    assert not await thought.is_visible()
    await answers(tab).get_by_text("Reasoning").click()
    await thought.wait_for()
    await tab.page.get_by_text("Calls get_weather").click()
    await answers(tab).get_by_text('"city": "Oslo"').wait_for()
    await tab.page.get_by_label("Result of get_weather").fill("4 degrees")
    await tab.page.get_by_role("button", name="Send result").click()
    await answers(tab).get_by_text("Cold").wait_for()
    sent = bodies[1]["messages"]
    assert isinstance(sent, list)
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
    assert sent[1]["tool_calls"] == [{"id": "call-1", "type": "function", "function": function}]
    assert sent[2] == {"role": "tool", "tool_call_id": "call-1", "content": "4 degrees"}


async def test_an_error_is_shown_with_the_servers_words_and_can_be_tried_again(tab: Tab) -> None:
    await tab.open()
    # The browser itself writes down that a request was answered 503.
    tab.expected = ("503",)
    tab.site.pool.state = "draining"
    await tab.ask("Hello")
    await tab.page.get_by_role("alert").get_by_text("No engine is ready").wait_for()
    tab.site.pool.state = "ready"
    await tab.page.get_by_role("button", name="Try again").click()
    await answers(tab).get_by_text("Hi there").wait_for()


async def test_five_hundred_conversations_are_listed_found_opened_and_moved(tab: Tab, tmp_path: Path) -> None:
    await tab.open()
    conversations = [
        {
            "format": "splitserve-conversation",
            "id": f"id-{number}",
            "title": f"Talk {number}",
            "created": number,
            "updated": number,
            "system": "",
            "nodes": {"n": {"id": "n", "parent": "", "role": "user", "content": f"Question {number}"}},
            "chosen": {"": "n"},
        }
        for number in range(500)
    ]
    circle = {**conversations[0], "id": "circle", "chosen": {"": "n", "n": "n"}}
    (tmp_path / "talks.json").write_text(json.dumps([*conversations, circle, {"id": "no conversation"}]))
    await tab.page.get_by_text("Manage").click()
    async with tab.page.expect_file_chooser() as chooser:
        await tab.page.get_by_role("button", name="Import").click()
    await (await chooser.value).set_files(tmp_path / "talks.json")
    entries = tab.page.locator("#conversations .open")
    await entries.nth(499).wait_for(state="attached")
    assert await entries.count() == 500
    await tab.reload()
    await tab.page.get_by_label("Search conversations").fill("talk 499")
    await tab.page.get_by_role("button", name="Talk 499", exact=True).click()
    await tab.page.get_by_text("Question 499").wait_for()
    await tab.page.get_by_text("Manage").click()
    async with tab.page.expect_download() as download:
        await tab.page.get_by_role("button", name="Export all").click()
    saved = json.loads(Path(await (await download.value).path()).read_text())
    assert sorted(saved, key=lambda each: each["updated"]) == conversations
    await tab.page.get_by_label("Search conversations").fill("")
    await tab.page.get_by_role("button", name="Delete all").click()
    await tab.page.get_by_role("dialog").get_by_role("button", name="Delete all").click()
    await tab.page.get_by_text("Conversations are kept in this browser.").wait_for()
    assert await entries.count() == 0


async def test_with_keys_the_page_loads_without_one_asks_for_it_and_uses_it(browser: Browser) -> None:
    async with running_site(api_key_hashes=(hash_key(KEY),)) as site, new_tab(browser, site) as tab:
        await tab.page.goto(site.url)
        await tab.page.get_by_role("dialog").get_by_text("This server wants an API key.").wait_for()
        await tab.page.get_by_label("Key", exact=True).fill("sk-a-wrong-key-of-tests")
        await tab.page.keyboard.press("Enter")
        await tab.page.get_by_role("dialog").get_by_text("does not accept this key").wait_for()
        await tab.page.get_by_label("Key", exact=True).fill(KEY)
        await tab.page.keyboard.press("Enter")
        await tab.page.locator("#status").get_by_text("Ready").wait_for()
        await tab.page.locator("#model option[value='org/demo']").wait_for(state="attached")
        assert await tab.page.get_by_label("Model").input_value() == "org/demo"
        await tab.ask("Hello")
        await answers(tab).get_by_text("Hi there").wait_for()
        assert [text for text in tab.complaints if "401" not in text] == []


async def test_the_state_is_asked_for_again_after_an_answer_that_is_not_the_servers(browser: Browser) -> None:
    num_asked = 0

    async def answer(route: Route) -> None:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 1:
            await route.fulfill(status=200, content_type="text/html", body="<p>Please log in</p>")
        else:
            await route.continue_()

    async with running_site() as site, new_tab(browser, site) as tab:
        await tab.page.clock.install()
        await tab.page.route(re.compile(r"/health$"), answer)
        await tab.page.goto(site.url)
        await tab.page.locator("#status").get_by_text("Server away").wait_for()
        await tab.page.clock.run_for(6000)
        await tab.page.locator("#status").get_by_text("Ready").wait_for()
        assert tab.complaints == []


async def test_late_answers_about_a_replaced_key_change_nothing(browser: Browser) -> None:
    is_released = asyncio.Event()
    late: list[str] = []

    def has_wrong_key(request: Request) -> bool:
        return "sk-a-wrong-key" in request.headers.get("authorization", "")

    async def answer(route: Route) -> None:
        is_late = has_wrong_key(route.request)
        if is_late:
            late.append(route.request.url)
        response = await route.fetch()
        if is_late:
            await is_released.wait()
        await route.fulfill(response=response)

    async with running_site(api_key_hashes=(hash_key(KEY),)) as site, new_tab(browser, site) as tab:
        await tab.page.route(re.compile(r"/health$|/v1/models$"), answer)
        await tab.open()
        await tab.page.get_by_role("dialog").get_by_text("This server wants an API key.").wait_for()
        await tab.page.get_by_label("Key", exact=True).fill("sk-a-wrong-key")
        await tab.page.keyboard.press("Enter")
        await tab.page.get_by_role("button", name="API key").click()
        await tab.page.get_by_label("Key", exact=True).fill(KEY)
        await tab.page.keyboard.press("Enter")
        await tab.page.locator("#status").get_by_text("Ready").wait_for()
        arrivals = asyncio.Queue[str]()
        tab.page.on(
            "requestfinished", lambda request: has_wrong_key(request) and arrivals.put_nowait(request.url)
        )
        assert len(late) == 2
        is_released.set()
        for _ in late:
            await asyncio.wait_for(arrivals.get(), 20)
        await tab.ask("Hello")
        await answers(tab).get_by_text("Hi there").wait_for()
        assert not await tab.page.get_by_role("dialog").is_visible()
        assert await tab.page.locator("#status").inner_text() == "Ready"
