"""Which files make the console's page, and how may a browser use them?

A closed list, read once. Browsers ask each time whether they still have the right one (ETag), so that a gateway that
was replaced never meets the page of another version. The page may load what comes from its own gateway and nothing
else, runs no script that is written into it, and may not be framed.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
    # As text: browsers would rather save Markdown than show it.
    ".md": b"text/plain; charset=utf-8",
}
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ALWAYS: Final = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)


@dataclass(frozen=True, slots=True)
class Asset:
    headers: tuple[tuple[bytes, bytes], ...]
    etag: bytes
    body: bytes


def load_assets() -> Mapping[bytes, Asset]:
    """By the path that follows that of the console; the page itself has none."""
    built = {path.name: path for path in sorted((_HERE / "assets").iterdir()) if path.suffix in _TYPES}
    found = {("" if name == "index.html" else name).encode(): _asset(path) for name, path in built.items()}
    return found | {f"runbooks/{path.stem}".encode(): _asset(path) for path in _runbooks()}


def _runbooks() -> list[Path]:
    """What is installed along; from a checkout, where it is written."""
    for folder in (_HERE / "runbooks", _HERE.parents[2] / "docs" / "operations" / "runbooks"):
        if folder.is_dir():
            return sorted(folder.glob("*.md"))
    return []


def _asset(path: Path) -> Asset:
    body = path.read_bytes()
    etag = b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
    return Asset(((b"content-type", _TYPES[path.suffix]), (b"etag", etag), *_ALWAYS), etag, body)
