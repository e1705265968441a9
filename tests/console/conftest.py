"""Browser fixture for the console tests, and a recorder of page errors and requested hosts."""

import shutil
from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, Request, async_playwright, expect

ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
)
# Timeout for every wait on the page; a change normally appears within two seconds.
expect.set_options(timeout=30_000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    found = shutil.which("chromium")
    assert found, "chromium is missing; run scripts/install_observability"
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        yield started
        await started.close()


class Watcher:
    """Records a page's errors and warnings and the hosts it sends requests to."""

    def __init__(self, page: Page) -> None:
        self.complaints: list[str] = []
        self.hosts: set[str] = set()
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._asked)

    def _said(self, message: ConsoleMessage) -> None:
        # Chromium also logs network errors, which are expected when a test stops the gateway.
        if message.type in ("error", "warning") and "ERR_" not in message.text:
            self.complaints.append(message.text)

    def _asked(self, request: Request) -> None:
        self.hosts.add(request.url.split("/")[2])
