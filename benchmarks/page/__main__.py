"""How soon does the page show something, and what does an open live view take?

Usage: python -m benchmarks.page [--seconds 120] [--streams 16] [--step-ms 0] [--pictures DIR]

Drives the machine's Chromium by Playwright. First paint and the time until the page has started are those of
five loads with an empty cache. Then the live view stays open beside an engine with the simulated executor,
whose steps take next to no time, and prints every tenth of the time: the JavaScript heap after a collection,
the number of nodes and listeners, frames per second, and steps per second, each of which is an event of the
view. What bounds steps is the streams' clients, which share the machine with the browser: fewer streams,
more steps. --pictures DIR instead takes the pictures of the docs, on the demo model under load.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import httpx
from playwright.async_api import Browser, CDPSession, Page, async_playwright

from benchmarks.page.pictures import take_pictures
from benchmarks.page.server import kept_busy, running

SIMULATED = ("--executor", "simulated", "--max-num-seqs", "64", "--simulated-step-ms")
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


async def measure_watching(browser: Browser, url: str, seconds: float, num_streams: int) -> None:
    """Print heap, nodes, frames and steps of a live view while it is open beside so many streams."""
    page = await (await browser.new_context(viewport={"width": 1440, "height": 900})).new_page()
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable")
    await page.goto(f"{url}/#/live")
    await page.evaluate(
        "window.frames_seen = 0; (function count() { frames_seen++; requestAnimationFrame(count) })()"
    )
    async with (
        kept_busy(url, num_streams, max_tokens=200, prompt_words=20),
        httpx.AsyncClient(base_url=url) as client,
    ):
        for sample in range(NUM_SAMPLES + 1):
            before = await count(page, client)
            await asyncio.sleep(seconds / NUM_SAMPLES)
            after = await count(page, client)
            elapsed_s = after.at_s - before.at_s
            print(
                f"{sample:3}: {await heap_of(session)}, "
                f"{(after.num_frames - before.num_frames) / elapsed_s:.0f} frames/s, "
                f"{(after.num_steps - before.num_steps) / elapsed_s:.0f} steps/s",
                flush=True,
            )
        print(await page.locator("#chart-readout").inner_text())
    await page.context.close()


class Count(NamedTuple):
    """What had been drawn and computed at a time of the page's clock."""

    at_s: float
    num_frames: int
    num_steps: float


async def count(page: Page, client: httpx.AsyncClient) -> Count:
    """Return what there has been so far."""
    num_frames, at_ms = await page.evaluate("[frames_seen, performance.now()]")
    metrics = (await client.get("/metrics")).text
    steps = re.search(r"^splitserve:engine_steps_total\{.*\} (\S+)$", metrics, flags=re.MULTILINE)
    assert steps is not None, "the frontend does not tell the engine's steps"
    return Count(at_ms / 1000, num_frames, float(steps[1]))


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
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args()
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        if options.pictures is not None:
            await take_pictures(browser, options.pictures)
            return
        with running(*SIMULATED, str(options.step_ms)) as url:
            await measure_loads(browser, url)
            await measure_watching(browser, url, options.seconds, options.streams)


asyncio.run(main())
