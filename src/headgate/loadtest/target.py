"""Address of the server under test."""

from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from headgate.loadtest.problem import WorkloadError

_PATH = "/chat/completions"


@dataclass(frozen=True, slots=True)
class TargetUrl:
    host: str
    port: int
    path: str
    tls: bool

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parses the address of a server, of its `/v1` path, or of its chat completions path."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            raise WorkloadError(f'"{url}" has an invalid port; use one from 1 to 65535') from None
        if parts.scheme not in ("http", "https") or not parts.hostname or not url.isascii():
            raise WorkloadError(f'"{url}" is not a server URL; use one such as http://127.0.0.1:8080')
        if parts.username is not None or parts.query:
            raise WorkloadError(
                f'the URL of "{parts.hostname}" must not contain a user or a query; use --api-key for a key'
            )
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), _whole_path(parts.path.rstrip("/")), tls)

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    def path_of(self, path: str) -> str:
        """Path of an API, such as `/v1/embeddings`, on the same server."""
        versioned = self.path.removesuffix(_PATH)
        return versioned + path.removeprefix("/v1") if path.startswith("/v1/") else versioned.removesuffix("/v1") + path

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host_header}{self.path}"


def _whole_path(path: str) -> str:
    if path.endswith(_PATH):
        return path
    return path + _PATH if path.endswith("/v1") else f"{path}/v1{_PATH}"
