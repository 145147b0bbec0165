"""The pictures of the docs: both views, two widths, light and dark, on the demo model under load."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

from playwright.async_api import Browser, BrowserContext, Page, Route

from benchmarks.page.server import kept_busy, running

FLAGS = ("--max-num-seqs", "12", "--scheduling-policy", "fair", "--kv-cache-memory-bytes", "12M")
WIDTHS = ((390, 844), (1440, 1000))
# The charts show a minute.
FILL_S = 62.0
ANSWER = """\
A hash map keeps each key in a *bucket* that is computed from it, so looking one up \
takes the same time however many there are.

```python
class HashMap:
    def __init__(self, num_buckets: int = 64) -> None:
        self.buckets = [[] for _ in range(num_buckets)]

    def put(self, key, value) -> None:
        bucket = self.buckets[hash(key) % len(self.buckets)]
        bucket.append((key, value))  # newest last
```

| operation | mean | worst |
| :-- | --: | --: |
| look up | O(1) | O(n) |
| insert | O(1) | O(n) |
"""


async def take_pictures(browser: Browser, folder: Path) -> None:
    """Write page-VIEW-THEME-WIDTH.png for all of them."""
    with running(*FLAGS) as url:
        await _live_views(browser, url, folder)
        for width in WIDTHS:
            for theme in ("light", "dark"):
                await _chat(browser, url, width, theme, folder / f"page-chat-{theme}-{width[0]}.png")


async def _live_views(browser: Browser, url: str, folder: Path) -> None:
    async with (
        kept_busy(url, 22, max_tokens=96, prompt_words=20),
        contextlib.AsyncExitStack() as stack,
    ):
        pages = {
            folder / f"page-live-{theme}-{width[0]}.png": await stack.enter_async_context(
                _live(browser, url, width, theme)
            )
            for width in WIDTHS
            for theme in ("light", "dark")
        }
        await asyncio.sleep(FILL_S)
        for path, page in pages.items():
            await page.screenshot(path=path)


@contextlib.asynccontextmanager
async def _live(browser: Browser, url: str, width: tuple[int, int], theme: str) -> AsyncIterator[Page]:
    context = await _context(browser, width, theme)
    page = await context.new_page()
    await page.goto(f"{url}/#/live")
    yield page
    await context.close()


async def _chat(browser: Browser, url: str, width: tuple[int, int], theme: str, path: Path) -> None:
    """The first answer is the model's; the second is made up, as the demo model writes no code."""
    context = await _context(browser, width, theme)
    page = await context.new_page()
    await page.goto(url)
    await page.locator("body[data-started]").wait_for()
    for question in ("Tell me a short story", "What is a compiler?"):
        await _ask(page, question)
        await page.evaluate("document.getElementById('new-chat').click()")
    await _ask(page, "What is the capital of France?")

    async def made_up(route: Route) -> None:
        chunk = json.dumps({"choices": [{"index": 0, "delta": {"content": ANSWER}}]})
        await route.fulfill(content_type="text/event-stream", body=f"data: {chunk}\n\ndata: [DONE]\n\n")

    await page.route("**/v1/chat/completions", made_up)
    await _ask(page, "How does a hash map work? Show it in Python.")
    await page.screenshot(path=path)
    await context.close()


async def _context(browser: Browser, width: tuple[int, int], theme: str) -> BrowserContext:
    size = {"width": width[0], "height": width[1]}
    return await browser.new_context(viewport=size, color_scheme=theme)


async def _ask(page: Page, question: str) -> None:
    await page.get_by_label("Message", exact=True).fill(question)
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Send", exact=True).wait_for()
