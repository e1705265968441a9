"""Browser login for operators with a fake issuer: the flow, attacks on it, sessions, CSRF and logout."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from headgate.edge.admin.sessions import SessionSigner
from headgate.wire.keys import digest, format_digest
from testing.fake_engine import FakeEngine
from testing.fake_issuer import FakeIssuer, fake_issuer, signing_key, token_of
from testing.gateway import GatewayInLoop, chat, gateway_in_loop
from tests.security.test_operator_tokens import HOLD, KEY, SECRET, with_operators

REDIRECT = "http://127.0.0.1:9090/login/callback"
CLIENT = "headgate-console"
PROTECTED = ("/console/", "/console/events", "/status", "/metrics", "/verdict", "/requests", "/explain/req_1")


class Provider:
    """Authorization and token endpoints beside a fake issuer. Issues ID tokens with changed claims."""

    def __init__(self, issuer: FakeIssuer) -> None:
        self.issuer = issuer
        self.groups = ["on-call"]
        self.changed: dict[str, Any] = {}
        self.forms: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.asked: dict[str, str] = {}
        issuer.pages["/.well-known/openid-configuration"] = {
            "issuer": issuer.url,
            "jwks_uri": f"{issuer.url}/jwks",
            "authorization_endpoint": f"{issuer.url}/auth",
            "token_endpoint": f"{issuer.url}/token",
        }
        issuer.answers["/token"] = self._token

    async def _token(self, form: dict[str, str], headers: dict[str, str]) -> tuple[int, Any]:
        self.forms.append(form)
        self.headers.append(headers)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        if form["code"] != "good" or challenge.decode() != self.asked["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        claims = {"aud": CLIENT, "groups": self.groups, "nonce": self.asked["nonce"], **self.changed}
        key = claims.pop("key", None)
        return 200, {"id_token": token_of(self.issuer, key=key, **claims), "access_token": "x", "token_type": "Bearer"}


class Browser:
    """Sends requests with the cookies that it received, and follows no redirects."""

    def __init__(self, gateway: GatewayInLoop) -> None:
        self.gateway = gateway
        self.cookies: dict[str, str] = {}
        self.set_cookies: list[str] = []

    async def ask(
        self, path: str, method: str = "GET", *, html: bool = True, json: Any = None, **headers: str
    ) -> tuple[int, str, str]:
        """Returns status, location and body."""
        sent = {
            "accept": "text/html" if html else "*/*",
            **{name.replace("_", "-"): each for name, each in headers.items()},
        }
        if self.cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        url = self.gateway.admin_url + path
        async with self.gateway.http.request(method, url, headers=sent, json=json, allow_redirects=False) as answer:
            self.set_cookies = answer.headers.getall("set-cookie", [])
            for each in self.set_cookies:
                name, _, value = each.partition(";")[0].partition("=")
                self.cookies[name] = value
                if not value:
                    del self.cookies[name]
            if path == "/console/events" and answer.status == 200:
                return (
                    200,
                    "",
                    (await answer.content.readuntil(b"\n\n")).decode()
                    + (await answer.content.readuntil(b"\n\n")).decode(),
                )
            return answer.status, answer.headers.get("location", ""), await answer.text()

    async def begin(self, provider: Provider) -> dict[str, str]:
        status, location, _ = await self.ask("/login")
        assert status == 303
        provider.asked = {name: values[0] for name, values in parse_qs(urlsplit(location).query).items()}
        assert location.startswith(f"{provider.issuer.url}/auth?")
        return provider.asked

    async def log_in(self, provider: Provider, code: str = "good", **changed: str) -> tuple[int, str, str]:
        asked = await self.begin(provider)
        return await self.ask(f"/login/callback?code={code}&state={changed.get('state', asked['state'])}")

    async def csrf(self) -> str:
        _, _, events = await self.ask("/console/events")
        return events.partition('"csrf":"')[2].partition('"')[0]


def config_of(issuer: FakeIssuer, engine: FakeEngine, *, login: Any = None, secret: str = SECRET) -> dict[str, Any]:
    options = {"client_id": CLIENT, "redirect_url": REDIRECT, **(login or {})}
    keys = {"ops": {"key": format_digest(digest(secret.encode(), KEY)), "role": "viewer"}}
    return {**with_operators(issuer, engine, login=options), "admin_keys": keys, "key_secret": secret}


@asynccontextmanager
async def serving(folder: Path, *, login: Any = None, **more: Any) -> AsyncIterator[tuple[GatewayInLoop, Provider]]:
    async with fake_issuer() as issuer, FakeEngine() as engine:
        provider = Provider(issuer)
        config = config_of(issuer, engine, login=login) | more
        async with gateway_in_loop(config, folder, operator_key=KEY) as gateway:
            yield gateway, provider


async def test_login_opens_a_session_and_logout_ends_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, provider):
        browser = Browser(gateway)
        assert (await browser.ask("/console/"))[:2] == (303, "/login")
        asked = await browser.begin(provider)
        assert (asked["client_id"], asked["redirect_uri"], asked["response_type"]) == (CLIENT, REDIRECT, "code")
        assert (asked["scope"], asked["code_challenge_method"]) == ("openid profile", "S256")
        [cookie] = browser.set_cookies
        assert cookie.endswith("; Path=/; Max-Age=600; HttpOnly; SameSite=Lax")

        status, location, _ = await browser.ask(f"/login/callback?code=good&state={asked['state']}")
        assert (status, location) == (303, "/console/")
        assert browser.set_cookies[0].endswith("; Path=/; Max-Age=28800; HttpOnly; SameSite=Lax")
        assert list(browser.cookies) == ["headgate_session"], "the cookie of the login is deleted"
        assert provider.forms[0]["client_id"] == CLIENT
        assert (await browser.ask("/console/"))[0] == 200
        assert (await browser.ask("/status"))[0] == 200

        csrf = await browser.csrf()
        assert (await browser.ask("/login/logout", "POST"))[0] == 403, "without the CSRF token"
        assert (await browser.ask("/login/logout", "POST", x_headgate_csrf=csrf))[0] == 200
        assert browser.cookies == {}
        assert (await browser.ask("/status", html=False))[0] == 401


async def test_pages_require_authentication_if_operators_log_in(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, _):
        for path in PROTECTED:
            async with gateway.http.get(gateway.admin_url + path) as answer:
                assert answer.status == 401, path
                assert answer.headers["www-authenticate"] == "Bearer"
                assert "missing or unknown operator key or token" in (await answer.json())["error"]
            async with gateway.http.get(gateway.admin_url + path, headers={"authorization": f"Bearer {KEY}"}) as answer:
                assert answer.status in (200, 404), path
        for path in ("/health", "/ready", "/docs/"):
            async with gateway.http.get(gateway.admin_url + path) as answer:
                assert answer.status == 200


async def test_session_without_the_permission_gets_403(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, provider):
        provider.groups = ["finance"]
        browser = Browser(gateway)
        assert (await browser.log_in(provider))[0] == 303

        status, _, body = await browser.ask("/requests")
        assert status == 403
        assert 'operator \\"corp:alice\\" lacks the permission \\"read\\"' in body


async def test_operator_without_a_role_gets_no_session(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, provider):
        provider.groups = ["others"]
        browser = Browser(gateway)
        status, _, body = await browser.log_in(provider)

        assert (status, "headgate_session" in browser.cookies) == (403, False)
        assert "corp:alice has no role" in body


@pytest.mark.parametrize(
    "changed",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"aud": "headgate-admin"},
        {"aud": [CLIENT, "another"]},
        {"azp": "another"},
        {"exp": 1_000_000_000},
        {"iss": "https://evil.example.com"},
        {"key": signing_key("k1", "ES256", number=5)},
        {"sub": "a\nb"},
    ],
)
async def test_invalid_id_token_opens_no_session(changed: dict[str, Any], tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, provider):
        provider.changed = changed
        browser = Browser(gateway)
        status, _, _ = await browser.log_in(provider)

        assert (status, "headgate_session" in browser.cookies) == (401, False)


async def test_callback_is_accepted_only_in_the_browser_that_began_the_login(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, provider):
        browser, victim, other = Browser(gateway), Browser(gateway), Browser(gateway)
        asked = await browser.begin(provider)
        callback = f"/login/callback?code=good&state={asked['state']}"

        assert (await victim.ask(callback))[0] == 400, "without a cookie"
        await other.begin(provider)
        assert (await other.ask(callback))[0] == 400, "with the cookie of another login"
        for wrong in ("state=", "state=x&code=good", f"{callback[16:]}&state=x", f"{callback[16:]}&iss=https://evil"):
            assert (await browser.ask(f"/login/callback?{wrong}"))[0] == 400, wrong
        assert (await browser.ask(f"/login/callback?error=access_denied&state={asked['state']}"))[0] == 400
        assert provider.forms == [], "no code was sent to the issuer"


async def test_code_from_another_login_is_rejected(tmp_path: Path) -> None:
    """The issuer checks the code verifier, which differs for each login."""
    async with serving(tmp_path) as (gateway, provider):
        stolen, browser = Browser(gateway), Browser(gateway)
        victims = dict(await stolen.begin(provider))
        asked = dict(await browser.begin(provider))
        provider.asked = victims
        status, _, _ = await browser.ask(f"/login/callback?code=good&state={asked['state']}")

        assert (status, "headgate_session" in browser.cookies) == (401, False)


async def test_change_with_a_session_needs_the_csrf_token(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, provider):
        browser = Browser(gateway)
        await browser.log_in(provider)
        csrf = await browser.csrf()

        for headers in ({}, {"x_headgate_csrf": ""}, {"x_headgate_csrf": csrf[:-1]}, {"x_headgate_csrf": "x" * 43}):
            assert (await browser.ask("/admin/v1/overrides/create", "POST", json=HOLD, **headers))[0] == 403
        status, _, body = await browser.ask("/admin/v1/overrides/create", "POST", json=HOLD, x_headgate_csrf=csrf)
        assert (status, '"created_by":"corp:alice"' in body) == (200, True)
        other = Browser(gateway)
        await other.log_in(provider)
        other_csrf = await other.csrf()
        assert (await browser.ask("/admin/v1/overrides/list", "POST", json={}, x_headgate_csrf=other_csrf))[0] == 403


async def test_session_is_valid_on_other_gateways_with_the_same_secret(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with fake_issuer() as issuer, FakeEngine() as engine:
        provider = Provider(issuer)
        own, foreign = config_of(issuer, engine), config_of(issuer, engine, secret="another secret of these tests")
        async with (
            gateway_in_loop(own, tmp_path / "one", operator_key=KEY) as first,
            gateway_in_loop(config_of(issuer, engine), tmp_path / "two", operator_key=KEY) as second,
            gateway_in_loop(foreign, tmp_path, operator_key=KEY) as stranger,
        ):
            browser = Browser(first)
            asked = await browser.begin(provider)
            browser.gateway = second  # The load balancer may send each request to another gateway.
            assert (await browser.ask(f"/login/callback?code=good&state={asked['state']}"))[0] == 303
            csrf = await browser.csrf()
            browser.gateway = first
            assert (await browser.ask("/status"))[0] == 200
            assert (await browser.ask("/admin/v1/overrides/list", "POST", json={}, x_headgate_csrf=csrf))[0] == 200
            browser.gateway = stranger
            assert (await browser.ask("/status", html=False))[0] == 401


async def test_stream_ends_with_its_session(tmp_path: Path) -> None:
    async with serving(tmp_path, login={"session_lifetime": "2s"}) as (gateway, provider):
        browser = Browser(gateway)
        ended = False
        async with asyncio.timeout(60):
            while not ended:
                await browser.log_in(provider)
                headers = {"cookie": f"headgate_session={browser.cookies['headgate_session']}"}
                async with gateway.http.get(gateway.admin_url + "/console/events", headers=headers) as answer:
                    await answer.content.read()  # Until the gateway ends the stream.
                    # On a busy machine, the session may expire before the stream starts.
                    ended = answer.status == 200
        assert (await browser.ask("/status", html=False))[0] == 401


async def test_cookies_are_secure_if_browsers_use_https(tmp_path: Path) -> None:
    url = "https://headgate.example.com/login/callback"
    async with serving(tmp_path, login={"redirect_url": url}) as (gateway, provider):
        browser = Browser(gateway)
        assert (await browser.log_in(provider))[0] == 303
        assert browser.set_cookies[0].startswith("__Host-headgate_session=")
        assert browser.set_cookies[0].endswith("; HttpOnly; SameSite=Lax; Secure")
        assert (await browser.ask("/health", host="headgate.example.com"))[0] == 200, (
            "the host of redirect_url is allowed"
        )


async def test_client_secret_is_sent_only_to_the_issuer(tmp_path: Path) -> None:
    async with serving(tmp_path, login={"client_secret": "s3cret of the client"}) as (gateway, provider):
        browser = Browser(gateway)
        asked = await browser.begin(provider)
        assert "s3cret" not in str(asked)
        assert (await browser.ask(f"/login/callback?code=good&state={asked['state']}"))[0] == 303
        expected = base64.b64encode(f"{CLIENT}:s3cret%20of%20the%20client".encode()).decode()
        assert provider.headers[0]["authorization"] == f"Basic {expected}"
        assert "client_id" not in provider.forms[0]


async def test_unreachable_issuer_gives_503_and_keys_still_work(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, provider):
        await provider.issuer.stop()
        status, _, body = await Browser(gateway).ask("/login")
        assert (status, "The identity provider is not available" in body) == (503, True)
        async with gateway.http.get(
            gateway.admin_url + "/status", headers={"authorization": f"Bearer {KEY}"}
        ) as answer:
            assert answer.status == 200


async def test_reads_with_a_session_are_recorded_with_its_name(tmp_path: Path) -> None:
    async with serving(tmp_path, audit={"directory": str(tmp_path / "audit")}) as (gateway, provider):
        provider.groups = ["platform"]
        browser = Browser(gateway)
        await browser.log_in(provider)
        async with gateway.post(chat(), headers={"authorization": f"Bearer {token_of(provider.issuer)}"}) as answer:
            assert answer.status == 200
        await browser.ask("/requests?tenant=acme/search")
        csrf = await browser.csrf()
        _, _, body = await browser.ask("/admin/v1/audit/reads", "POST", json={"limit": 10}, x_headgate_csrf=csrf)

        assert body.count('"operator":"corp:alice"') == 2
        assert '"route":"/requests","tenant":"acme/search"' in body
        assert '"route":"/console/events"' in body


async def test_login_pages_reject_other_methods(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, _):
        browser = Browser(gateway)
        for path, method in (("/login", "POST"), ("/login/callback", "POST"), ("/login/logout", "PUT")):
            assert (await browser.ask(path, method))[0] == 405
        status, _, body = await browser.ask("/login/logout")
        assert (status, body) == (200, "You are not logged in. Open /login to log in, or /console/.\n")
        assert (await browser.ask("/login/other", html=False))[0] == 401


async def test_gateways_of_a_cell_can_read_each_others_pages_but_not_use_the_admin_api(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, _):
        own = gateway.gateway._certificates.member_headers()
        stranger = SessionSigner([b"another secret"]).member_token()
        for headers, status in ((own, 200), ({"authorization": f"Bearer {stranger}"}, 401)):
            for path in ("/verdict", "/requests?local=1"):
                async with gateway.http.get(gateway.admin_url + path, headers=headers) as answer:
                    assert answer.status == status
        url = gateway.admin_url + "/admin/v1/overrides/list"
        async with gateway.http.post(url, headers=own, json={}) as answer:
            assert answer.status == 401


async def test_pages_need_no_login_without_the_setting(tmp_path: Path) -> None:
    async with fake_issuer() as issuer, FakeEngine() as engine:
        async with gateway_in_loop(with_operators(issuer, engine), tmp_path) as gateway:
            async with gateway.http.get(gateway.admin_url + "/status") as answer:
                assert answer.status == 200
            async with gateway.http.get(gateway.admin_url + "/login", allow_redirects=False) as answer:
                assert answer.status == 404
