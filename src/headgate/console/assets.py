"""Files that make up the console page, with their HTTP headers.

The set of files is fixed and read once. Browsers revalidate each file (ETag), so that a page never outlives the gateway
version that served it. The content security policy allows only resources from the same gateway, and forbids inline
scripts and framing.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
_CONTENT_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
}
_CONTENT_SECURITY_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_COMMON_HEADERS: Final = (
    (b"content-security-policy", _CONTENT_SECURITY_POLICY),
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
    """Returns the console files by their path relative to the console's path. The page itself has an empty path."""
    built = {path.name: path for path in sorted((_HERE / "assets").iterdir()) if path.suffix in _CONTENT_TYPES}
    return {("" if name == "index.html" else name).encode(): _asset(path) for name, path in built.items()}


def _asset(path: Path) -> Asset:
    body = path.read_bytes()
    etag = b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
    return Asset(((b"content-type", _CONTENT_TYPES[path.suffix]), (b"etag", etag), *_COMMON_HEADERS), etag, body)
