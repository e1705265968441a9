"""Tests for the error pages on the data listener and the documentation on the admin listener."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urldefrag, urljoin

import aiohttp
import pytest

from headgate.edge.pages.served import docs_pages, error_pages
from headgate.model.outcome import Outcome
from headgate.model.verdict import Incident
from testing.fake_engine import FakeEngine
from testing.gateway import GatewayInLoop, gateway_in_loop
from tests.edge.test_the_door import config_with_keys

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
PAGE_BYTES_MAX = 160_000


class Parsed(HTMLParser):
    """Links, anchors and tags on a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "href" and value is not None:
                self.links.append(value)
            elif name == "id" and value is not None:
                self.anchors.add(value)


@asynccontextmanager
async def a_gateway(folder: Path) -> AsyncIterator[GatewayInLoop]:
    """A gateway that requires keys."""
    async with FakeEngine() as engine, gateway_in_loop(config_with_keys(engine.url), folder) as gateway:
        yield gateway


async def crawled(http: aiohttp.ClientSession, start: str) -> dict[str, Parsed]:
    """Follow every link below `start`; return each page by its URL."""
    found: dict[str, Parsed] = {}
    waiting = [start]
    while waiting:
        url = waiting.pop()
        if url in found:
            continue
        async with http.get(url, allow_redirects=False) as answer:
            assert answer.status == 200, url
            found[url] = page = Parsed(await answer.text())
        links = (urldefrag(urljoin(url, link)).url for link in page.links)
        waiting += [link for link in links if link.startswith(start)]
    return found


def broken_links(pages: dict[str, Parsed], start: str) -> list[tuple[str, str]]:
    """Links to missing anchors, and same-host links that point outside the tree."""
    host = start.split("/")[2]
    broken: list[tuple[str, str]] = []
    for url, page in pages.items():
        for link in page.links:
            target, fragment = urldefrag(urljoin(url, link))
            inside = target.startswith(start)
            if (target.split("/")[2] == host and not inside) or (
                inside and fragment and fragment not in pages[target].anchors
            ):
                broken.append((url, link))
    return broken


async def test_links_between_error_pages_resolve(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        start = f"{gateway.url}/errors/"
        pages = await crawled(gateway.http, start)

    assert pages.keys() == {start, *(f"{start}{outcome}" for outcome in Outcome)}
    assert broken_links(pages, start) == []


async def test_links_between_documentation_pages_resolve(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        start = f"{gateway.admin_url}/docs/"
        pages = await crawled(gateway.http, start)
        base = gateway.admin_url

    served = {path.decode() for path, page in docs_pages().items() if page.status == 200 and path[-3:] != b".md"}
    assert {url.removeprefix(base) for url in pages} == served
    assert broken_links(pages, start) == []
    assert {f"/docs/operations/runbooks/{incident.value}" for incident in Incident} <= served


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_error_page_requires_no_key_and_has_safe_headers(tmp_path: Path, method: str) -> None:
    async with a_gateway(tmp_path) as gateway:
        async with gateway.http.request(method, f"{gateway.url}/errors/queue_full") as answer:
            assert answer.status == 200
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            assert answer.headers["content-security-policy"].startswith(POLICY)
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "public, max-age=3600"
            assert int(answer.headers["content-length"]) == len(error_pages()[b"/errors/queue_full"].body)
            assert ("<h1" in await answer.text()) is (method == "GET")


async def test_unknown_error_page_gets_the_ordinary_error_and_adds_no_metric_series(tmp_path: Path) -> None:
    async def series(gateway: GatewayInLoop) -> set[str]:
        async with gateway.http.get(f"{gateway.admin_url}/metrics") as answer:
            return {
                line.rpartition(" ")[0]
                for line in (await answer.text()).splitlines()
                if "request" in line and "headgate_engine_" not in line
            }

    async with a_gateway(tmp_path) as gateway:
        unknown = f"{gateway.url}/errors/made_up"
        async with gateway.http.get(unknown) as answer:
            assert answer.status == 404
            error = (await answer.json())["error"]
        before = await series(gateway)
        for number in range(3):
            async with gateway.http.get(f"{unknown}_{number}") as answer:
                assert answer.status == 404
        assert await series(gateway) == before

    assert error["code"] == "unknown_url"
    assert error["message"] == "unknown path (invalid_request); see /errors/invalid_request"


async def test_error_page_accepts_only_reads(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        async with gateway.post({}, path="/errors/queue_full") as answer:
            assert (answer.status, answer.headers["allow"]) == (405, "GET")


async def test_error_page_is_served_without_recording_or_authentication(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        async with gateway.http.get(f"{gateway.url}/errors/shed") as answer:
            request_id = answer.headers["x-request-id"]
        [door, _] = gateway.gateway._parts.listeners
        assert len(door.connections._unauthenticated) == 1, "the connection still counts as unauthenticated"
        async with gateway.http.get(f"{gateway.admin_url}/explain/{request_id}") as answer:
            assert answer.status == 404


async def test_unchanged_page_is_not_sent_again(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        for url in (f"{gateway.url}/errors/shed", f"{gateway.admin_url}/docs/guides/slo"):
            async with gateway.http.get(url) as answer:
                etag = answer.headers["etag"]
            async with gateway.http.get(url, headers={"if-none-match": etag}) as answer:
                assert (answer.status, await answer.read()) == (304, b"")


async def test_index_without_slash_redirects_relative_to_its_own_path(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        for url, location in (
            (f"{gateway.url}/errors", "errors/"),
            (f"{gateway.admin_url}/docs", "docs/"),
            (f"{gateway.admin_url}/docs/operations/runbooks", "runbooks/"),
        ):
            async with gateway.http.get(url, allow_redirects=False) as answer:
                assert (answer.status, answer.headers["location"]) == (308, location)
            async with gateway.http.get(url) as answer:
                assert answer.status == 200


async def test_documentation_page_is_also_served_at_the_path_of_its_source(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        for path in ("/docs/operations/runbooks/engine_hang.md", "/docs/operations/runbooks/README.md"):
            async with gateway.http.get(gateway.admin_url + path) as answer:
                assert answer.status == 200
                assert answer.headers["cache-control"] == "no-cache"
        async with gateway.http.get(f"{gateway.admin_url}/docs/operations/runbooks/made_up") as answer:
            assert answer.status == 404


def test_pages_are_small_and_self_contained() -> None:
    for path, page in (error_pages() | docs_pages()).items():
        if page.status == 200:
            tags = Parsed(page.body.decode()).tags
            assert not tags & {"script", "img", "link", "iframe", "form", "object"}, path
            assert b"<style></style>" not in page.body
            assert len(page.body) < PAGE_BYTES_MAX, path
