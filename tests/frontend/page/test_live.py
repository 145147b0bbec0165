"""The live view in a browser: what it shows of engines, and that one which is killed shows and heals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.messages import EngineStats, QueueStats, RequestInfo, RequestStage, WaitReason
from splitserve.engine_core.ipc.wire import BlockMap, EngineView, StepColumns, TenantShare
from splitserve.frontend.engines.pool import EnginePool
from tests.frontend.app.simulated import simulated_engine
from tests.frontend.checkpoints import write_checkpoint
from tests.frontend.http.app_fixtures import serving
from tests.frontend.page.browser import Site, Tab, new_tab

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.system]


def steps(*columns: list[int]) -> StepColumns:
    return StepColumns(1, *(pack_int32(column) for column in columns))


def show_load(site: Site) -> None:
    """Let the fake engine be busy."""
    pool = site.pool
    pool.engine_view = EngineView(
        BlockMap(bytes([2] * 5 + [3] * 2 + [1] * 2 + [0]), num_idle_cached=20),
        steps([900_000, 400_000], [8000, 12_000], [3, 4], [64, 0], [2, 4], [0, 1]),
        [TenantShare("blue", 3, 1), TenantShare("green", 1, 0)],
        8,
    )
    pool.stats_now = EngineStats(
        num_running=4, num_waiting=1, num_blocks=100, num_free_blocks=30, block_size=16, num_preemptions=1,
        prefix_cache_queries=200, prefix_cache_hits=50,
    )  # fmt: skip
    pool.queue_now = QueueStats(waiting={"rows": 1})
    pool.open_requests = [
        RequestInfo(
            "chatcmpl-run", RequestStage.RUNNING, num_prompt_tokens=9, num_output_tokens=3, age_s=4.0
        ),
        RequestInfo("cmpl-wait", RequestStage.WAITING, WaitReason.ROWS, 0, 7, age_s=2.0, queue_time_s=2.0),
    ]


async def test_rows_blocks_steps_requests_and_tenants_are_shown(tab: Tab) -> None:
    show_load(tab.site)
    await tab.open("live")
    page = tab.page
    await page.locator("#tile-running").get_by_text("4").wait_for()
    assert await page.locator("#tile-running-note").inner_text() == "of 8 rows"
    assert await page.locator("#tile-waiting-note").inner_text() == "1 for rows"
    assert await page.locator("#tile-kv").inner_text() == "70 %"
    assert "25 % since start" in await page.locator("#tile-hits-note").inner_text()
    blocks = page.get_by_role("img", name="Map of 100 KV blocks: 70 in use, 20 cached, 10 free")
    await blocks.wait_for()
    assert (
        "2 steps of 10.0 ms, 64 prefill and 6 decode tokens, 1 preemption"
        in await page.locator("#chart-readout").inner_text()
    )
    waiting = page.get_by_role("row", name="wait")
    await waiting.get_by_text("all rows are taken").wait_for()
    # It waits on while the test looks at the others.
    await waiting.get_by_role("img", name=re.compile(r"^queue ([2-9]|\d\d)\.\d s, prefill 0\.0 s")).wait_for()
    assert await page.get_by_role("row").get_by_text("9 + 3").count() == 1
    assert await page.locator("#tenants li").all_inner_texts() == ["blue\n3 run, 1 wait", "green\n1 run"]
    await page.get_by_label("Engines").get_by_text("engine-0").wait_for()
    await page.get_by_label("Frontends").get_by_text("requests").wait_for()


async def test_a_pause_holds_what_is_shown(tab: Tab) -> None:
    show_load(tab.site)
    await tab.open("live")
    await tab.page.locator("#tile-running").get_by_text("4").wait_for()
    await tab.page.get_by_role("button", name="Pause").click()
    tab.site.pool.stats_now = EngineStats(num_running=7)
    await tab.page.get_by_role("button", name="Resume").wait_for()
    assert await tab.page.locator("#tile-running").inner_text() == "4"
    await tab.page.get_by_role("button", name="Resume").click()
    await tab.page.locator("#tile-running").get_by_text("7").wait_for()


async def test_a_server_that_is_away_is_told_and_heals(tab: Tab) -> None:
    # The browser itself writes down what was not loaded.
    tab.expected = ("ERR_FAILED",)
    await tab.open("live")
    await tab.page.locator("#status").get_by_text("Ready").wait_for()
    await tab.page.route("**/debug/**", lambda route: route.abort())
    await tab.page.get_by_text("The server cannot be reached.").wait_for()
    await tab.page.unroute("**/debug/**")
    await tab.page.locator("#live-error").wait_for(state="hidden")


async def test_an_engine_that_sleeps_is_shown_asleep(tab: Tab) -> None:
    # The browser itself writes down that /health said 503.
    tab.expected = ("503",)
    tab.site.pool.state = "asleep"
    await tab.open("live")
    await tab.page.locator("#status").get_by_text("Asleep").wait_for()
    card = tab.page.get_by_label("Engines").get_by_role("listitem")
    assert "asleep" in await card.locator(".state-chip").inner_text()
    tab.site.pool.state = "ready"
    await tab.page.locator("#status").get_by_text("Ready").wait_for()


async def test_a_killed_engine_shows_and_heals(browser: Browser, tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path)
    with simulated_engine(model) as engine:
        pool = EnginePool([engine.address], "frontend-0")
        async with serving(pool) as (url, _), new_tab(browser, Site(url, pool)) as tab:  # type: ignore[arg-type]
            engines = tab.page.get_by_label("Engines")
            await tab.page.goto(f"{url}/#/live")
            await engines.get_by_text("ready").wait_for()
            engine.process.kill()
            engine.process.wait()
            await engines.get_by_text("lost").wait_for()
            await tab.page.locator("#status").get_by_text("No engine").wait_for()
            with simulated_engine(model, "--listen", engine.address):
                await engines.get_by_text("ready").wait_for()
                await tab.page.locator("#status").get_by_text("Ready").wait_for()
            tab.expected = ("503",)
            assert tab.unexpected == []
