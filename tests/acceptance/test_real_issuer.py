"""Callers' tokens and operators' logins with a real OpenID Connect provider."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from joserfc.jwk import RSAKey

from headgate.wire.keys import digest, format_digest
from testing.fake_engine import FakeEngine
from testing.fake_issuer import compact, signing_key
from testing.gateway import GatewayInLoop, a_config, chat, gateway_in_loop
from testing.real_issuer import CONSOLE, RealIssuer, log_in, real_issuer

pytestmark = pytest.mark.observability

SECRET, KEY = "only for these tests", "hg-operator"


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[GatewayInLoop, RealIssuer]]:
    """A gateway and its provider. The gateway allows no clock skew, so that tokens expire without a delay."""
    async with FakeEngine() as engine:
        config = a_config(engine.url, key_secret=SECRET, tenants={"acme/search": {}})
        config.pop("anonymous_tenant")
        admin = f"http://{config['admin_listen']}"
        async with real_issuer(f"{admin}/login/callback") as issuer:
            corp = {"issuer": issuer.url, "audience": "headgate", "tenant": "acme/{team}", "clock_skew": "0s"}
            login = {"client_id": CONSOLE, "redirect_url": issuer.redirect_url}
            roles = {"operator": ["alices"], "accountant": ["bobs"]}
            operators = {"issuer": "corp", "audience": "headgate-admin", "roles": roles, "login": login}
            config["identity"] = {"issuers": {"corp": corp}, "operators": operators}
            config["admin_keys"] = {"ops": {"key": format_digest(digest(SECRET.encode(), KEY)), "role": "viewer"}}
            async with gateway_in_loop(config, folder, operator_key=KEY) as gateway:
                yield gateway, issuer


async def status_of(gateway: GatewayInLoop, token: str) -> int:
    async with gateway.post(chat(), headers={"authorization": f"Bearer {token}"}) as answer:
        return answer.status


def parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    header, claims, _ = (base64.urlsafe_b64decode(each + "=" * (-len(each) % 4)) for each in token.split("."))
    return json.loads(header), json.loads(claims)


async def test_callers_tokens_are_accepted_and_forged_ones_rejected(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, issuer):
        token = await issuer.caller_token(gateway.http)
        assert await status_of(gateway, token) == 200
        assert await status_of(gateway, await issuer.caller_token(gateway.http, "another")) == 401

        header, claims = parts(token)
        signed, _, signature = token.rpartition(".")
        raised = compact(header, {**claims, "team": "other"}, lambda _: base64.urlsafe_b64decode(signature + "=="))
        own = compact(header, claims, signing_key(header["kid"], "RS256", number=3).sign)
        none = compact({**header, "alg": "none"}, claims, lambda _: b"")
        assert [await status_of(gateway, each) for each in (raised, own, none, f"{none}x", f"{signed}.")] == [401] * 5

        public = await issuer.public_key(gateway.http)
        key = RSAKey.import_key(public)
        secrets = [key.as_pem(private=False), key.as_der(private=False), json.dumps(public).encode()]
        for secret in (*secrets, public["n"].encode()):
            sign = partial(hmac.digest, secret, digest=hashlib.sha256)
            confused = compact({**header, "alg": "HS256"}, claims, sign)
            assert await status_of(gateway, confused) == 401
        embedded = compact({**header, "jwk": signing_key("k", "RS256", number=3).public()}, claims, lambda _: b"x")
        assert await status_of(gateway, embedded) == 401
        assert await status_of(gateway, token) == 200


async def test_expired_tokens_and_removed_keys_are_rejected(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, issuer):
        old = await issuer.caller_token(gateway.http)
        assert await status_of(gateway, old) == 200
        issuer.token_s = 1
        await issuer.rotate("k2")

        short = await issuer.caller_token(gateway.http)
        header, _ = parts(short)
        assert header["kid"] == "k2"
        async with asyncio.timeout(60):
            while await status_of(gateway, short) != 401:
                # A busy machine may take longer than the token lives, so it need not be accepted before.
                await asyncio.sleep(0.05)
        issuer.token_s = 600
        await issuer.rotate("k3")
        assert await status_of(gateway, await issuer.caller_token(gateway.http)) == 200
        assert await status_of(gateway, old) == 401, "its key has been removed"


async def test_operator_logs_in_to_the_console(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, _):
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as alice:
            arrived = await log_in(alice, f"{gateway.admin_url}/console/", "alice")
            assert (arrived.status, str(arrived.url)) == (200, f"{gateway.admin_url}/console/")
            async with alice.get(f"{gateway.admin_url}/status") as answer:
                assert answer.status == 200
            async with alice.get(f"{gateway.admin_url}/console/events") as events:
                session = (await events.content.readuntil(b"\n\n") + await events.content.readuntil(b"\n\n")).decode()
            assert '"name":"corp:alice"' in session
            csrf = session.partition('"csrf":"')[2].partition('"')[0]
            hold = {"verb": "hold", "target": "batch", "duration_s": 60}
            url = f"{gateway.admin_url}/admin/v1/overrides/create"
            async with alice.post(url, json=hold) as answer:
                assert answer.status == 403
            async with alice.post(url, json=hold, headers={"x-headgate-csrf": csrf}) as answer:
                assert (answer.status, (await answer.json())["created_by"]) == (200, "corp:alice")

        for user, status in (("bob", 403), ("eve", 403)):
            async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
                assert (await log_in(http, f"{gateway.admin_url}/console/", user)).status == status
