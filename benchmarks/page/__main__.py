"""How soon does the page show something, and what does an open live view take?

Usage: python -m benchmarks.page [--seconds 120] [--pictures DIR]

Drives the machine's Chromium by Playwright. First paint and the time until the page has started are those of
five loads with an empty cache. Then the live view stays open beside an engine with the simulated executor,
whose steps take next to no time, and prints every tenth of the time: the JavaScript heap after a collection,
the number of nodes and listeners, and frames per second. --pictures DIR instead takes the pictures of the
docs, on the demo model under load.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
from pathlib import Path

from playwright.async_api import Browser, CDPSession, async_playwright

from benchmarks.page.pictures import take_pictures
from benchmarks.page.server import kept_busy, running

SIMULATED = ("--executor", "simulated", "--max-num-seqs", "64")
NUM_LOADS = 5
NUM_SAMPLES = 10


async def measure_loads(browser: Browser, url: str) -> None:
    """Print first paint and start of loads without a cache."""
    for _ in range(NUM_LOADS):
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(url)
        await page.locator("body[data-started]").wait_for()
        times = await page.evaluate(
            """() => ({
                paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime,
                started: performance.now(),
                bytes: performance.getEntriesByType("resource")
                    .reduce((sum, each) => sum + each.transferSize, 0),
            })"""
        )
        print(
            f"first paint {times['paint']:.0f} ms, started after at most {times['started']:.0f} ms, "
            f"{times['bytes'] / 1000:.0f} kB"
        )
        await context.close()


async def measure_watching(browser: Browser, url: str, seconds: float) -> None:
    """Print heap, nodes and frames of a live view while it is open."""
    page = await (await browser.new_context(viewport={"width": 1440, "height": 900})).new_page()
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable")
    await page.goto(f"{url}/#/live")
    await page.evaluate(
        "window.frames_seen = 0; (function count() { frames_seen++; requestAnimationFrame(count) })()"
    )
    async with kept_busy(url, 48, max_tokens=200, prompt_words=20):
        for sample in range(NUM_SAMPLES + 1):
            before = await page.evaluate("[frames_seen, performance.now()]")
            await asyncio.sleep(seconds / NUM_SAMPLES)
            after = await page.evaluate("[frames_seen, performance.now()]")
            per_second = 1000 * (after[0] - before[0]) / (after[1] - before[1])
            print(f"{sample:3}: {await heap_of(session)}, {per_second:.0f} frames/s")
        print(await page.locator("#chart-readout").inner_text())
    await page.context.close()


async def heap_of(session: CDPSession) -> str:
    """Return what the page holds after a collection, in words."""
    await session.send("HeapProfiler.collectGarbage")
    metrics = {
        each["name"]: each["value"] for each in (await session.send("Performance.getMetrics"))["metrics"]
    }
    return (
        f"heap {metrics['JSHeapUsedSize'] / 1e6:.2f} MB, {metrics['Nodes']:.0f} nodes, "
        f"{metrics['JSEventListeners']:.0f} listeners"
    )


async def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args()
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        if options.pictures is not None:
            await take_pictures(browser, options.pictures)
            return
        with running(*SIMULATED) as url:
            await measure_loads(browser, url)
            await measure_watching(browser, url, options.seconds)


asyncio.run(main())
