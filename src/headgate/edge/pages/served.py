"""Documentation pages that a listener serves without a key.

The set of pages is fixed and read once. The data listener serves the error pages to callers at `/errors/`. The admin
listener serves all pages to operators at `/docs/`. Pages contain no gateway data. A data connection that only reads
pages stays unauthenticated, and counts toward the limit on unauthenticated connections.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from headgate.edge.client import Client

ERROR_PAGES: Final = "/errors"
"""Path of the error pages on the data listener."""
DOCS_PAGES: Final = "/docs"
"""Path of the documentation on the admin listener."""
_HERE: Final = Path(__file__).parent
_STYLE: Final = b"<style></style>"
"""Placeholder for the stylesheet in each file."""
_HEADERS: Final = (
    (b"content-type", b"text/html; charset=utf-8"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_FOR_CALLERS: Final = (b"cache-control", b"public, max-age=3600")
_FOR_OPERATORS: Final = (b"cache-control", b"no-cache")


@dataclass(frozen=True, slots=True)
class HtmlPage:
    """One page, or the redirect to an index from its path without the final slash."""

    headers: tuple[tuple[bytes, bytes], ...]
    etag: bytes
    body: bytes
    status: int = 200

    def send(self, client: Client) -> None:
        """Responds with the page, or with 304 if the client already has it."""
        if self.etag and self.etag in client.headers.get(b"if-none-match", b""):
            client.reply(304, self.headers, b"")
        else:
            client.reply(self.status, self.headers, self.body)


@cache
def error_pages() -> Mapping[bytes, HtmlPage]:
    """Returns the error pages by path."""
    return {path.encode(): page for path, page in _load("errors", ERROR_PAGES, _FOR_CALLERS)}


@cache
def docs_pages() -> Mapping[bytes, HtmlPage]:
    """Returns the documentation pages by path. Each page is also available at its source path, with `.md`."""
    pages = dict(_load("docs", DOCS_PAGES, _FOR_OPERATORS))
    sources = {f"{path}README.md" if path.endswith("/") else f"{path}.md": page for path, page in pages.items()}
    return {path.encode(): page for path, page in (sources | pages).items() if page.status == 200 or path in pages}


def _load(directory: str, above: str, caching: tuple[bytes, bytes]) -> Iterator[tuple[str, HtmlPage]]:
    style = b"<style>\n%b</style>" % (_HERE / "style.css").read_bytes()
    for file in sorted((_HERE / directory).rglob("*.html")):
        body = file.read_bytes().replace(_STYLE, style, 1)
        etag = b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
        page = HtmlPage((*_HEADERS, caching, (b"etag", etag)), etag, body)
        name = file.relative_to(_HERE / directory).with_suffix("").as_posix()
        if file.stem == "index":
            path = f"{above}/{name.removesuffix('index')}"
            yield path, page
            yield path.removesuffix("/"), _redirect(path)
        else:
            yield f"{above}/{name}", page


def _redirect(path: str) -> HtmlPage:
    # A relative location also works behind a proxy that serves the gateway below a prefix.
    location = f"{path.split('/')[-2]}/".encode()
    return HtmlPage((*_HEADERS, (b"location", location)), b"", b"", status=308)
