"""The console shows a live gateway in a real browser, is accessible and escapes all text."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, Route, expect

from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import NO_TARGETS, RunningGateway, a_config, chat, gateway_process_with_client
from tests.console.conftest import Watcher

pytestmark = [pytest.mark.observability, pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

MARKUP = "<img src=x onerror=alert(1)>"
TABS_MAX = 60
"""Upper bound on the number of links and buttons before the last slow request on the page."""
PLACES = ("#verdict-title", ".about", "#classes thead th", ".pill", "#endpoints td[data-tone]", ".foot a")


def a_gateways_config(url: str) -> dict[str, Any]:
    """Set a prefill budget that every request exceeds, so that every stream is listed as slow."""
    return a_config(url, classes={"interactive": {**NO_TARGETS, "stage_budget": {"prefill": "1ms"}}, "batch": {}})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    """Gateway in front of a fake engine, shared by all tests that do not modify it."""
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(tokens=3, pace_s=0.01)
        async with gateway_process_with_client(a_gateways_config(engine.url), tmp_path_factory.mktemp("gateway")) as (
            running,
            _,
        ):
            yield running


@asynccontextmanager
async def a_page(
    browser: Browser, gateway: RunningGateway, folder: Path, **options: Any
) -> AsyncIterator[tuple[Page, Watcher]]:
    """Open the console and wait until it is live. Save a screenshot to the directory at the end."""
    context = await browser.new_context(**options)
    page = await context.new_page()
    watcher = Watcher(page)
    await page.goto(gateway.admin_url)
    await expect(page.locator("#link-text")).to_have_text("live")
    yield page, watcher
    await page.screenshot(path=folder / "console.png", full_page=True)
    await context.close()


async def ask(gateway: RunningGateway, times: int = 1, **fields: Any) -> None:
    for _ in range(times):
        async with gateway.post(chat(**fields)) as answer:
            await answer.read()


async def a_slow_request(gateway: RunningGateway, page: Page) -> Locator:
    """Send a request and return its row once the page shows it. Rows from earlier tests may also be present."""
    async with gateway.post(chat(stream=True)) as answer:
        name = answer.headers["x-request-id"]
        await answer.read()
    row = page.locator("#recent details", has=page.locator("code", has_text=name))
    await expect(row).to_be_visible()
    return row


async def test_page_loads_without_errors_and_contacts_only_the_gateway(
    browser: Browser, gateway: RunningGateway, tmp_path: Path
) -> None:
    async with a_page(browser, gateway, tmp_path) as (page, watcher):
        assert page.url == f"{gateway.admin_url}/console/"
        await expect(page.locator("#endpoints tbody tr")).to_have_count(1)
        await expect(page.locator("#ttft-chart canvas")).to_be_visible()

    assert watcher.complaints == []
    assert watcher.hosts == {gateway.admin_url.removeprefix("http://")}


async def test_page_shows_served_and_rejected_requests_within_seconds(
    browser: Browser, gateway: RunningGateway, tmp_path: Path
) -> None:
    async with a_page(browser, gateway, tmp_path) as (page, _):
        await ask(gateway, times=5, stream=True)
        row = page.locator("#classes tbody tr", has_text="interactive")
        await expect(row.locator("td[data-title='Served/s']")).not_to_have_text("0")
        await expect(page.locator("#tenants tbody tr")).to_have_count(1)

        await ask(gateway, model="nobody-serves-this")
        await expect(page.locator("#rejections tbody")).to_contain_text("model not found")
        before = await page.locator("#about").text_content()
        await expect(page.locator("#about")).not_to_have_text(before or "")


async def test_slow_request_shows_its_stages_and_the_explain_command(
    browser: Browser, gateway: RunningGateway, tmp_path: Path
) -> None:
    async with a_page(browser, gateway, tmp_path) as (page, _):
        request = await a_slow_request(gateway, page)
        await request.locator("summary").click()
        await expect(request.locator(".stagetable tbody tr", has_text="prefill")).to_contain_text("of 1.0 ms")
        await expect(request.locator("code")).to_have_text(re.compile(r"^headgate explain \S+$"))
        await request.locator("button").click()
        await expect(request.locator("button")).to_have_text(re.compile("Copied|Select"))


async def test_page_escapes_markup_in_every_field(browser: Browser, gateway: RunningGateway, tmp_path: Path) -> None:
    async with a_page(browser, gateway, tmp_path) as (page, watcher):
        await ask(gateway, model=MARKUP)
        await a_slow_request(gateway, page)
        await expect(page.locator("#tenants tbody th")).to_be_visible()
        state = hostile(await told(gateway))
        affected = {"class": MARKUP, "tenant": MARKUP, "effect": MARKUP}
        texts = dict.fromkeys(("pool", "cause", "incident", "sentence", "action", "runbook"), MARKUP)
        state["verdicts"] = [{**texts, "since_s": 1, "evidence": [MARKUP], "affected": [affected]}] * 2
        event = f"event: state\ndata: {json.dumps(state)}\n\n"
        await page.route("**/events", lambda route: route.fulfill(content_type="text/event-stream", body=event))
        await page.reload()
        await expect(page.locator("#verdict .sentence")).to_have_text(MARKUP)
        await expect(page.locator("#tenants tbody th")).to_have_text(MARKUP)
        await expect(page.locator("#endpoints tbody th")).to_have_text(MARKUP)
        await page.locator("#recent summary").first.click()
        await expect(page.locator("#recent .who").first).to_have_text(f"{MARKUP} / {MARKUP}")
        assert await page.locator("img").count() == 0
        assert await page.locator("a[href*='<'], a[href^='javascript']").count() == 0
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    assert watcher.complaints == []


async def test_verdict_updates_in_place(browser: Browser, gateway: RunningGateway, tmp_path: Path) -> None:
    """Text selection and focus survive an update, and the page announces only a new incident."""
    state = await told(gateway)
    texts = {
        "pool": "main",
        "cause": "memory",
        "incident": "brand_new_thing",
        "action": "Run `headgate status`, first.",
    }

    async def tell(route: Route) -> None:
        asked.append(len(asked))
        last = len(asked)
        changing = {"since_s": last, "sentence": f"{last} %", "evidence": [f"{last} of 9", "the same"], "affected": []}
        state["verdicts"] = [{**texts, **changing, "runbook": f"docs/operations/runbooks/{texts['incident']}.md"}]
        body = f"retry: 100\nevent: state\ndata: {json.dumps(state)}\n\n"
        await route.fulfill(content_type="text/event-stream", body=body)

    async with a_page(browser, gateway, tmp_path) as (page, watcher):
        asked: list[int] = []
        await page.route("**/events", tell)
        await page.reload()
        await expect(page.locator("#verdict .since")).to_contain_text("brand new thing")
        heard = await page.locator("#verdict [aria-live]").text_content()
        assert heard is not None
        assert heard.startswith("Memory: brand new thing")
        await page.evaluate(MARK_THE_COMMAND)
        await page.locator("#verdict .runbook a").focus()
        sentence, fact = page.locator("#verdict .sentence"), page.locator("#verdict .block li").first
        before = await sentence.text_content(), await fact.text_content()
        for element, text in zip((sentence, fact), before, strict=True):
            await expect(element).not_to_have_text(text or "")
        assert await page.evaluate("getSelection().toString()") == "headgate status"
        await expect(page.locator("#verdict .runbook a")).to_be_focused()
        assert await page.locator("#verdict [aria-live]").text_content() == heard

        texts["incident"] = "another_thing"
        await expect(page.locator("#verdict [aria-live]")).to_contain_text("another thing")

    assert watcher.complaints == []


async def test_page_counts_unlisted_endpoints(browser: Browser, gateway: RunningGateway, tmp_path: Path) -> None:
    state = await told(gateway)
    endpoint = state["endpoints"][0]
    state["endpoints"] = [{**endpoint, "id": f"main/{number}"} for number in range(200)]
    state["endpoints_known"] = state["pools"][0]["ready"] = 250
    state["gateway"]["cell"] = {"mode": "leading", "is_leader": True, "scheduler": None}
    event = f"event: state\ndata: {json.dumps(state)}\n\n"
    async with a_page(browser, gateway, tmp_path) as (page, _):
        await expect(page.locator("#classes-whose")).to_be_hidden()
        await page.route("**/events", lambda route: route.fulfill(content_type="text/event-stream", body=event))
        await page.reload()
        await expect(page.locator("#figures")).to_contain_text("250 of 250")
        await expect(page.locator("#endpoints-more")).to_contain_text("and 50 more")
        await expect(page.locator("#classes-whose")).to_contain_text("the whole cell")


async def told(gateway: RunningGateway) -> dict[str, Any]:
    async with gateway.http.get(f"{gateway.admin_url}/console/events") as answer:
        async for line in answer.content:
            if line.startswith(b'data: {"version":1,"at"'):
                state: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
                return state
    raise AssertionError("the gateway sent no state event")


def hostile(value: Any) -> Any:
    """Replace every string in the value with markup."""
    match value:
        case str():
            return MARKUP
        case dict():
            return {name: hostile(each) for name, each in value.items()}
        case list():
            return [hostile(each) for each in value]
        case _:
            return value


async def test_page_fits_a_phone_screen(browser: Browser, gateway: RunningGateway, tmp_path: Path) -> None:
    async with a_page(browser, gateway, tmp_path, viewport={"width": 390, "height": 844}) as (page, _):
        request = await a_slow_request(gateway, page)
        await request.locator("summary").click()
        await expect(request.locator(".request")).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390


async def test_page_follows_the_colour_scheme_with_sufficient_contrast(
    browser: Browser, gateway: RunningGateway, tmp_path: Path
) -> None:
    shades: dict[str, int] = {}
    for scheme in ("light", "dark"):
        folder = tmp_path / scheme
        folder.mkdir()
        async with a_page(browser, gateway, folder, color_scheme=scheme) as (page, _):
            shades[scheme] = await page.evaluate(
                "Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"
            )
            for place in PLACES:
                ratio = await page.evaluate(CONTRAST, place)
                assert ratio >= 4.5, f"{place} has a contrast ratio of {ratio:.1f} in {scheme} mode"

    assert shades["dark"] < 60
    assert shades["light"] > 200


async def test_page_can_be_operated_with_the_keyboard(
    browser: Browser, gateway: RunningGateway, tmp_path: Path
) -> None:
    async with a_page(browser, gateway, tmp_path) as (page, _):
        request = await a_slow_request(gateway, page)
        await page.keyboard.press("Tab")
        await expect(page.locator(".skip")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.locator("#verdict")).to_be_focused()
        for _ in range(TABS_MAX):
            await page.keyboard.press("Tab")
            if await request.locator("summary").evaluate("each => each === document.activeElement"):
                break
        await expect(request.locator("summary")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(request.locator(".request")).to_be_visible()


async def test_page_has_labels_for_screen_readers(browser: Browser, gateway: RunningGateway, tmp_path: Path) -> None:
    async with a_page(browser, gateway, tmp_path) as (page, _):
        assert await page.locator("h1").count() == 1
        assert await page.locator("main").count() == 1
        assert await page.locator("header").get_attribute("class") == "top"
        for table in await page.locator("main > section table, .pair table").all():
            assert await table.locator("caption").text_content()
            assert await table.locator("thead th:not([scope=col])").count() == 0
        assert await page.locator("section:not([aria-labelledby]):not([aria-label])").count() == 0
        assert await page.locator("[aria-live=polite]").count() == 1
        assert await page.locator("html[lang=en]").count() == 1


async def test_page_reconnects_after_a_gateway_restart(browser: Browser, tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_gateways_config(engine.url)
        async with gateway_process_with_client(config, tmp_path) as (gateway, _):
            page = await browser.new_page()
            watcher = Watcher(page)
            await page.goto(gateway.admin_url)
            await expect(page.locator("#link-text")).to_have_text("live")
        gone = re.compile(r"reconnecting: last seen \d+ s ago")
        await expect(page.locator("#link-text")).to_have_text(gone)
        async with gateway_process_with_client(config, tmp_path):
            await expect(page.locator("#link-text")).to_have_text("live")
            await expect(page.locator("#endpoints tbody tr")).to_have_count(1)
        await page.close()

    assert watcher.complaints == []


MARK_THE_COMMAND = """() => {
  const range = document.createRange()
  range.selectNodeContents(document.querySelector('#verdict .action code'))
  getSelection().removeAllRanges()
  getSelection().addRange(range)
}"""

CONTRAST = """(place) => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => {
      const share = Number(part) / 255
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4
    })
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const found = document.querySelector(place)
  let behind = found
  while (/rgba\\(.*, 0\\)|transparent/.test(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement
  const [one, other] = [light(getComputedStyle(found).color), light(getComputedStyle(behind).backgroundColor)]
  return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05)
}"""
