"""Both views for everybody: axe's rules in both themes, narrow screens, the keyboard."""

from __future__ import annotations

import pytest

from tests.frontend.page.browser import Tab, new_tab
from tests.frontend.page.test_live import show_load

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.system]
TEXT = """# Title

Some `code`, a [link](https://example.invalid/) and a list:

- one
- two

> quote

```python
# comment
x = "text"
```
"""


async def show_all(tab: Tab, view: str) -> None:
    """Bring a view into a state that has a bit of everything."""
    show_load(tab.site)
    tab.site.answers.pieces = [TEXT]
    await tab.open(view)
    if view == "chat":
        await tab.ask("Show me everything")
        await tab.answered()
        await tab.page.get_by_role("button", name="Settings of the answers").click()
    else:
        await tab.page.get_by_role("row", name="wait").wait_for()


@pytest.mark.parametrize("view", ["chat", "live"])
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_an_audit_of_a_view_finds_nothing(browser, site, view: str, theme: str) -> None:  # type: ignore[no-untyped-def]
    axe = pytest.importorskip("axe_playwright_python.async_playwright").Axe()
    async with new_tab(browser, site, color_scheme=theme) as tab:
        await show_all(tab, view)
        result = (await axe.run(tab.page)).response
        assert len(result["passes"]) > 20, "the rules have looked at something"
        found = result["violations"]
        assert [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found] == []


@pytest.mark.parametrize("view", ["chat", "live"])
async def test_on_a_phone_nothing_is_wider_than_the_screen(browser, site, view: str) -> None:  # type: ignore[no-untyped-def]
    async with new_tab(browser, site, viewport={"width": 390, "height": 800}, has_touch=True) as tab:
        await show_all(tab, view)
        if view == "chat":
            await tab.page.get_by_role("button", name="Close the settings").click()
        wide = await tab.page.evaluate(
            """() => [...document.querySelectorAll("html, .view, .bar, .board, #thread-scroll")]
                .filter((element) => element.scrollWidth > element.clientWidth)
                .map((element) => element.id || element.className)"""
        )
        assert wide == []
        assert await tab.page.evaluate("document.documentElement.scrollWidth") == 390


async def test_by_keyboard_alone_a_question_is_asked_and_the_view_changed(tab: Tab) -> None:
    await tab.open()
    await tab.page.keyboard.press("Tab")
    assert await tab.page.evaluate("document.activeElement.textContent") == "Skip to content"
    await tab.page.get_by_role("link", name="Live").focus()
    await tab.page.keyboard.press("Enter")
    await tab.page.get_by_role("heading", name="Live view").wait_for()
    await tab.page.get_by_role("link", name="Chat").focus()
    await tab.page.keyboard.press("Enter")
    message = tab.page.get_by_label("Message", exact=True)
    # What is hidden as yet takes no focus.
    await message.wait_for()
    await message.focus()
    await tab.page.keyboard.type("Hello")
    await tab.page.keyboard.press("Enter")
    await tab.page.get_by_role("article", name="Assistant").get_by_text("Hi there").wait_for()


async def test_a_chosen_theme_stays_and_beats_the_systems(tab: Tab) -> None:
    await tab.open()
    ground = "getComputedStyle(document.body).backgroundColor"
    light = await tab.page.evaluate(ground)
    button = tab.page.locator("#theme")
    await button.click()
    await button.click()
    assert "dark" in (await button.get_attribute("aria-label") or "")
    dark = await tab.page.evaluate(ground)
    assert dark != light
    await tab.reload()
    assert await tab.page.evaluate(ground) == dark


async def test_the_documentation_works_under_its_policy(tab: Tab) -> None:
    response = await tab.page.goto(f"{tab.site.url}/docs")
    assert response is not None
    policy = response.headers["content-security-policy"]
    assert "script-src 'sha256-" in policy
    assert "unsafe" not in policy
    await tab.page.locator("details").filter(has_text="GET /live").locator("summary").click()
    await tab.page.locator("form[data-path='/live']").get_by_role("button", name="Send").click()
    await tab.page.get_by_text('{"status":"ok"}').wait_for()
    rule = "getComputedStyle(document.querySelector('.method')).fontWeight"
    assert await tab.page.evaluate(rule) == "700", "its style applies"
