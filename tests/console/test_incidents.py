"""The console shows the correct verdict for each of the demo's incidents."""

import asyncio
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from headgate.cli.demo import INCIDENTS as NAMES
from headgate.cli.demo_incidents import HEALTHY_S, INCIDENTS
from tests.console.conftest import Watcher

pytestmark = [pytest.mark.observability, pytest.mark.timeout(400)]

VERDICT_S_MAX = 30.0
IN_CI = "engine-hang"
"""The only incident that CI shows in a browser, with no timeout of its own. `just diagnosis --quick` checks all of them
in the simulator, and `just nightly` runs all of them here.
"""
HANG_GUARD_S = 90.0


@asynccontextmanager
async def a_demo(incident: str) -> AsyncIterator[tuple[str, float]]:
    """Run the demo; yield its console URL and the start time of the incident."""
    command = (sys.executable, "-m", "headgate.cli.main", "demo", "--incident", incident, "--plain")
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(HANG_GUARD_S):
            while not (found := re.search(r"http://\S+/console/", lines[-1] if lines else "")):
                line = await process.stdout.readline()
                assert line, "".join(lines)
                lines.append(line.decode())
        reading = asyncio.create_task(read_on(process.stdout, lines))
        yield found[0], time.monotonic() + HEALTHY_S
    finally:
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            status = await process.wait()
        reading.cancel()
        print("".join(lines))
    assert status == 0, "".join(lines)


async def read_on(stream: asyncio.StreamReader, lines: list[str]) -> None:
    """Read the demo's output so that a full pipe never blocks it."""
    while line := await stream.readline():
        lines.append(line.decode())


async def verdict(page: Page) -> str:
    return await page.locator("#verdict").get_attribute("data-cause") or ""


async def until_told(page: Page, cause: str, *, seconds_max: float) -> None:
    await expect(page.locator(f"#verdict[data-cause={cause}]")).to_be_visible(timeout=seconds_max * 1000)


async def pictures(page: Page, folder: Path, incident: str) -> None:
    """Take screenshots in light mode, dark mode and at phone width, and check that the page fits its width."""
    for name, scheme, width in (("light", "light", 1360), ("dark", "dark", 1360), ("phone", "light", 390)):
        await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        await page.set_viewport_size({"width": width, "height": 900})
        # A chart redraws one frame after a resize.
        await asyncio.sleep(0.5)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        await page.screenshot(path=folder / f"{incident}-{name}.png", full_page=True)


def test_expected_verdicts_cover_every_demo_incident() -> None:
    assert tuple(INCIDENTS) == NAMES


@asynccontextmanager
async def a_healthy_page(browser: Browser, url: str) -> AsyncIterator[tuple[Page, Watcher]]:
    page = await browser.new_page(viewport={"width": 1360, "height": 900})
    watcher = Watcher(page)
    await page.goto(url)
    await until_told(page, "healthy", seconds_max=HANG_GUARD_S)
    yield page, watcher
    await page.close()


async def check_the_verdict(page: Page, watcher: Watcher, folder: Path, incident: str) -> None:
    for part in (".sentence", ".action", ".block li"):
        assert await page.locator(f"#verdict {part}").first.text_content()
    await pictures(page, folder, incident)
    assert watcher.complaints == []
    await page.locator("#verdict .runbook a").click()
    await expect(page.locator("h1")).to_have_text(INCIDENTS[incident].expected_pattern)


async def until_pattern(page: Page, incident: str, *, seconds_max: float) -> None:
    pattern = INCIDENTS[incident].expected_pattern.replace("_", " ")
    await expect(page.locator("#verdict .since")).to_contain_text(pattern, timeout=max(1.0, seconds_max) * 1000)


@pytest.mark.asyncio(loop_scope="module")
async def test_page_shows_verdict_advice_and_runbook_for_an_incident(browser: Browser, tmp_path: Path) -> None:
    async with a_demo(IN_CI) as (url, _), a_healthy_page(browser, url) as (page, watcher):
        await until_told(page, INCIDENTS[IN_CI].expected_cause, seconds_max=HANG_GUARD_S)
        await until_pattern(page, IN_CI, seconds_max=HANG_GUARD_S)
        await check_the_verdict(page, watcher, tmp_path, IN_CI)


@pytest.mark.nightly
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("incident", INCIDENTS)
async def test_page_shows_correct_verdict_within_30_seconds(browser: Browser, incident: str, tmp_path: Path) -> None:
    async with a_demo(incident) as (url, begins_at), a_healthy_page(browser, url) as (page, watcher):
        await asyncio.sleep(max(0.0, begins_at - time.monotonic()))
        assert await verdict(page) == "healthy", "false alarm before the incident"

        await until_told(page, INCIDENTS[incident].expected_cause, seconds_max=VERDICT_S_MAX)
        print(f"{incident}: cause after {time.monotonic() - begins_at:.0f} s")
        # The cause can appear before the pattern. Both must appear within VERDICT_S_MAX.
        await until_pattern(page, incident, seconds_max=begins_at + VERDICT_S_MAX - time.monotonic())
        print(f"{incident}: pattern after {time.monotonic() - begins_at:.0f} s")
        await check_the_verdict(page, watcher, tmp_path, incident)
