"""A token issuer for tests, and tokens with any header, claims and signature."""

import asyncio
import base64
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from aiohttp import web
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

AUDIENCE = "headgate"
Answer = Callable[[dict[str, str], dict[str, str]], Awaitable[tuple[int, Any]]]
"""Takes a form and the headers. Returns a status and JSON."""


@dataclass(frozen=True)
class SigningKey:
    kid: str | None
    algorithm: str
    private: RSAKey | ECKey | OKPKey

    def public(self, **more: Any) -> dict[str, Any]:
        named = {} if self.kid is None else {"kid": self.kid}
        return {**self.private.as_dict(private=False), **named, "use": "sig", **more}

    def sign(self, signed: bytes) -> bytes:
        name = "Ed25519" if self.algorithm == "EdDSA" else self.algorithm
        return JWSRegistry.algorithms[name].sign(signed, self.private)


@cache
def _private(algorithm: str, number: int) -> RSAKey | ECKey | OKPKey:
    """A private key. RSA keys take long to create, so all tests share them."""
    if algorithm.startswith("ES"):
        curves = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
        return ECKey.generate_key(curves[algorithm])  # type: ignore[arg-type]
    return OKPKey.generate_key("Ed25519") if algorithm == "EdDSA" else RSAKey.generate_key(2048)


def signing_key(kid: str | None = "k1", algorithm: str = "ES256", number: int = 0) -> SigningKey:
    """Keys with another number have another private key."""
    return SigningKey(kid, algorithm, _private(algorithm, number))


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def compact(header: Mapping[str, Any], claims: Mapping[str, Any] | bytes, sign: Callable[[bytes], bytes]) -> str:
    """A token, which need not be valid."""
    payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    signed = f"{base64url(json.dumps(header, separators=(',', ':')).encode())}.{base64url(payload)}"
    return f"{signed}.{base64url(sign(signed.encode()))}"


class Issuer(Protocol):
    """A fake or real issuer. The same tests run against both."""

    url: str
    key: SigningKey
    """Key with which new tokens are signed."""
    now_s: Callable[[], float]
    """Clock of new tokens."""

    async def rotate(self, *, keep: bool) -> None:
        """Signs with a new key from now on. With `keep`, the previous one stays published."""
        ...

    async def stop(self) -> None: ...

    async def restart(self) -> None: ...


def claims_of(issuer: Issuer, **changed: Any) -> dict[str, Any]:
    """Claims of a valid token. None removes a claim."""
    now = int(issuer.now_s())
    claims = {"iss": issuer.url, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 600, "team": "search"}
    return {name: value for name, value in (claims | changed).items() if value is not None}


def token_of(issuer: Issuer, *, key: SigningKey | None = None, header: Mapping[str, Any] = {}, **changed: Any) -> str:
    """A token that is valid apart from the changes."""
    key = key or issuer.key
    usual = {"alg": key.algorithm, "typ": "JWT"} | ({} if key.kid is None else {"kid": key.kid})
    return compact({**usual, **header}, claims_of(issuer, **changed), key.sign)


@dataclass
class FakeIssuer:
    """Implements `Issuer`. Its pages can be replaced."""

    key: SigningKey = field(default_factory=signing_key)
    published: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    pages: dict[str, Any] = field(default_factory=dict[str, Any])
    """Pages that replace the usual ones: JSON, or an HTTP status."""
    answers: dict[str, Answer] = field(default_factory=dict[str, Answer])
    """Functions that answer posted forms, by path."""
    reads: list[str] = field(default_factory=list[str])
    """Paths of the requests."""
    hangs_until: asyncio.Event | None = None
    """Event for which pages wait. None if they are sent at once."""
    url: str = ""
    now_s: Callable[[], float] = time.time
    tls: ssl.SSLContext | None = None
    _port: int = 0
    _runner: web.AppRunner | None = None

    async def restart(self) -> None:
        self.published = self.published or [self.key.public()]
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        app.router.add_post("/{path:.*}", self._answer_form)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self.tls)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def rotate(self, *, keep: bool) -> None:
        self.key = signing_key(f"{self.key.kid}+", self.key.algorithm, len(self.key.kid or ""))
        self.published = [*(self.published if keep else []), self.key.public()]

    async def _answer(self, request: web.Request) -> web.Response:
        self.reads.append(request.path)
        if self.hangs_until is not None:
            await self.hangs_until.wait()
        usual = {
            "/.well-known/openid-configuration": {"issuer": self.url, "jwks_uri": f"{self.url}/jwks"},
            "/jwks": {"keys": self.published},
        }
        page = (usual | self.pages).get(request.path, 404)
        return web.Response(status=page) if isinstance(page, int) else web.json_response(page)

    async def _answer_form(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        headers = {name.lower(): value for name, value in request.headers.items()}
        status, body = await self.answers[request.path](form, headers)
        return web.json_response(body, status=status)


@asynccontextmanager
async def fake_issuer(key: SigningKey | None = None, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[FakeIssuer]:
    issuer = FakeIssuer(key or signing_key(), tls=tls)
    await issuer.restart()
    try:
        yield issuer
    finally:
        await issuer.stop()
