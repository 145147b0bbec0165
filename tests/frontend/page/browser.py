"""One Chromium and one server for all tests of this folder; without a browser they are skipped, and say so.

Everything runs in one event loop: the server over a FakePool, Playwright, the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from tests.frontend.http.app_fixtures import serving
from tests.frontend.http.fake_pool import FakePool

if TYPE_CHECKING:
    from playwright.async_api import Browser, ConsoleMessage, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HAS_DRIVER = importlib.util.find_spec("playwright") is not None
# Of a page's waits: a test never waits for a time, only this long for what has to come.
TIMEOUT_MS = 45_000


@dataclass
class Answers:
    """What the model answers: the pieces in their order; at None it waits until the gate is opened."""

    pieces: list[str | None] = field(default_factory=lambda: ["Hi there"])
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def play(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        """A script of FakePool."""
        texts = [piece for piece in self.pieces if piece is not None]
        num_played = 0
        for piece in self.pieces:
            if piece is None:
                await self.gate.wait()
                continue
            num_played += 1
            is_last = num_played == len(texts)
            ids = list(piece.encode())
            yield OutputDelta(0, piece, ids, finish_reason="stop" if is_last else None)


@dataclass
class Site:
    """A running server, and what is behind it."""

    url: str
    pool: FakePool
    answers: Answers = field(default_factory=Answers)

    def reset(self) -> None:
        """Begin a test with nothing that another has left."""
        self.answers = Answers()
        self.pool.script = lambda request: self.answers.play(request)
        self.pool.state = "ready"
        self.pool.engine_view = None
        self.pool.open_requests = []
        self.pool.seen.clear()
        self.pool.closed.clear()
        self.pool.num_closed.clear()


@contextlib.asynccontextmanager
async def running_site(**changes: object) -> AsyncIterator[Site]:
    """A server over a pool of its own; keywords are fields of FrontendConfig."""
    pool = FakePool(max_model_len=8192)
    async with serving(pool, **changes) as (url, _):
        yield Site(url, pool)


@pytest_asyncio.fixture(loop_scope="session", scope="package")
async def shared_site() -> AsyncIterator[Site]:
    async with running_site() as site:
        yield site


@pytest.fixture
def site(shared_site: Site) -> Site:
    shared_site.reset()
    return shared_site


@pytest_asyncio.fixture(loop_scope="session", scope="package")
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None or not HAS_DRIVER:
        missing = "Chromium (apt-get install chromium)" if HAS_DRIVER else "the package playwright"
        pytest.skip(f"the page is not tested in a browser: {missing} is not installed")
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        # Root has no sandbox, and containers little shared memory.
        flags = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        await browser.close()


@dataclass
class Tab:
    """A page in a browser of its own, without anything kept.

    Attributes:
        complaints: errors of its console and of its scripts.
        expected: words of complaints that the test brings about; they may come until the tab is closed.
    """

    page: Page
    site: Site
    complaints: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()

    async def open(self, view: str = "chat") -> None:
        """Load the page and wait until it has started."""
        await self.page.goto(f"{self.site.url}/#/{view}")
        await self._started()

    async def reload(self) -> None:
        """Load the page again and wait until it has started: what is typed before that is read by nobody."""
        await self.page.reload()
        await self._started()

    async def _started(self) -> None:
        await self.page.locator("body[data-started]").wait_for()

    async def ask(self, text: str) -> None:
        """Send a message."""
        await self.page.get_by_label("Message", exact=True).fill(text)
        await self.page.keyboard.press("Enter")

    async def answered(self) -> None:
        """Wait until the last answer is complete and kept; its text and counts are shown before that."""
        answer = self.page.get_by_role("article", name="Assistant").last
        await answer.get_by_role("button", name="Answer again").wait_for()

    @property
    def unexpected(self) -> list[str]:
        """The complaints that the test has not brought about."""
        return [text for text in self.complaints if not any(words in text for words in self.expected)]


@contextlib.asynccontextmanager
async def new_tab(browser: Browser, site: Site, **options: object) -> AsyncIterator[Tab]:
    """A new tab; keywords are options of a Playwright context."""
    context = await browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
    context.set_default_timeout(TIMEOUT_MS)
    page = await context.new_page()
    tab = Tab(page, site)

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            tab.complaints.append(message.text)

    page.on("console", note)
    page.on("pageerror", lambda error: tab.complaints.append(str(error)))
    try:
        yield tab
    finally:
        await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def tab(browser: Browser, site: Site) -> AsyncIterator[Tab]:
    """A tab whose console must stay empty."""
    async with new_tab(browser, site) as tab:
        yield tab
        assert tab.unexpected == []
