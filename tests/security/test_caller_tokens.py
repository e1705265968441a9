"""A gateway accepts callers' tokens beside API keys, and rejects forged, foreign and outdated ones.

The first tests run against a fake issuer here, and against a real one in `tests/contracts/issuers`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headgate.ports.tls import server_context
from headgate.wire.keys import digest, format_digest
from testing.certificates import Authority
from testing.fake_engine import FakeEngine
from testing.fake_issuer import AUDIENCE, Issuer, compact, fake_issuer, signing_key, token_of
from testing.gateway import GatewayInLoop, a_config, chat, gateway_in_loop

SECRET = "only for these tests"
API_KEY = "hg-a-key"


def config_for(issuer: Issuer, engine: FakeEngine, *, identity: Any = None, **settings: Any) -> dict[str, Any]:
    known = {"issuer": issuer.url, "audience": AUDIENCE, "tenant": "acme/{team}", **(identity or {})}
    keys = {"keys": [format_digest(digest(SECRET.encode(), API_KEY))]}
    config = a_config(
        engine.url,
        key_secret=SECRET,
        tenants={"acme/search": {}, "acme/mail": keys},
        identity={"issuers": {"corp": known}},
        **settings,
    )
    return {name: value for name, value in config.items() if name != "anonymous_tenant" or value in config["tenants"]}


@asynccontextmanager
async def serving(issuer: Issuer, folder: Path, **settings: Any) -> AsyncIterator[GatewayInLoop]:
    async with FakeEngine() as engine, gateway_in_loop(config_for(issuer, engine, **settings), folder) as gateway:
        yield gateway


async def ask(gateway: GatewayInLoop, token: str) -> tuple[int, dict[str, Any]]:
    async with gateway.post(chat(), headers={"authorization": f"Bearer {token}"}) as answer:
        return answer.status, await answer.json()


async def metric(gateway: GatewayInLoop, name: str, **labels: str) -> float:
    async with gateway.http.get(gateway.admin_url + "/metrics") as answer:
        page = await answer.text()
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    return next(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())


async def test_token_is_accepted_beside_keys(tmp_path: Path) -> None:
    async with fake_issuer() as issuer, serving(issuer, tmp_path) as gateway:
        assert (await ask(gateway, token_of(issuer)))[0] == 200
        assert (await ask(gateway, API_KEY))[0] == 200
        async with gateway.http.get(
            gateway.url + "/v1/usage", headers={"authorization": f"Bearer {token_of(issuer)}"}
        ) as answer:
            assert (await answer.json())["tenant"] == "acme/search"
        assert await metric(gateway, "headgate_tokens_accepted_total", issuer="corp") == 2
        assert await metric(gateway, "headgate_issuer_keys", issuer="corp") == 1


@pytest.mark.parametrize(
    ("attack", "reason", "status", "said"),
    [
        ("expired", "expired", 401, "the token has expired; request a new one from its issuer"),
        ("early", "not_yet_valid", 401, "the token is not valid for this gateway"),
        ("audience", "audience", 401, "the token is not valid for this gateway"),
        ("issuer", "unknown_issuer", 401, "the token is not valid for this gateway"),
        ("signature", "signature", 401, "the token is not valid for this gateway"),
        ("none", "algorithm", 401, "the token is not valid for this gateway"),
        ("claims", "claims", 401, "the token is not valid for this gateway"),
        ("tenant", "unknown_tenant", 403, "its tenant does not exist here"),
    ],
)
async def test_reason_is_in_the_metric_and_log_but_not_in_the_response(  # noqa: PLR0917 (one table)
    attack: str, reason: str, status: int, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="headgate")
    async with fake_issuer() as issuer, serving(issuer, tmp_path) as gateway:
        token = {
            "expired": token_of(issuer, exp=1_000_000_000),
            "early": token_of(issuer, nbf=4_000_000_000, exp=4_000_000_100),
            "audience": token_of(issuer, aud="another"),
            "issuer": token_of(issuer, iss="https://evil.example.com"),
            "signature": token_of(issuer, key=signing_key("k1", "ES256", number=5)),
            "none": token_of(issuer, header={"alg": "none"}),
            "claims": token_of(issuer, team="../bolt"),
            "tenant": token_of(issuer, team="unknown"),
        }[attack]
        got, body = await ask(gateway, token)

        assert got == status
        assert said in body["error"]["message"]
        assert await metric(gateway, "headgate_tokens_rejected_total", reason=reason) == 1
        lines = [each.fields["reason"] for each in caplog.records if each.getMessage() == "token rejected"]  # type: ignore[attr-defined]
        assert lines == [reason]
        assert token not in caplog.text


async def test_rejected_token_never_becomes_the_anonymous_tenant(tmp_path: Path) -> None:
    async with fake_issuer() as issuer, FakeEngine() as engine:
        config = a_config(
            engine.url, identity={"issuers": {"c": {"issuer": issuer.url, "audience": "x", "tenant": "laptop"}}}
        )
        async with gateway_in_loop(config, tmp_path) as gateway:
            async with gateway.post(chat()) as answer:
                assert answer.status == 200
            for wrong in (token_of(issuer), token_of(issuer, iss="https://evil.example.com"), "hg-unknown", "eyJ.e.e"):
                assert (await ask(gateway, wrong))[0] == 401


async def test_key_may_look_like_a_token_of_another_issuer(tmp_path: Path) -> None:
    key = compact({"alg": "HS256"}, {"iss": "https://old.example.com"}, lambda _: b"x")
    async with fake_issuer() as issuer, FakeEngine() as engine:
        config = config_for(issuer, engine)
        config["tenants"]["acme/mail"]["keys"] = [format_digest(digest(SECRET.encode(), key))]
        async with gateway_in_loop(config, tmp_path) as gateway:
            assert (await ask(gateway, key))[0] == 200


async def test_keys_rotate_under_load_without_a_failed_request(tmp_path: Path) -> None:
    """The issuer signs with its new key at once, and has removed the old one."""
    async with fake_issuer() as issuer, serving(issuer, tmp_path) as gateway:
        statuses: list[int] = []
        stopped = asyncio.Event()

        async def load() -> None:
            while not stopped.is_set():
                statuses.append((await ask(gateway, token_of(issuer)))[0])

        callers = [asyncio.create_task(load()) for _ in range(8)]
        async with asyncio.timeout(120):
            while len(statuses) < 50:
                await asyncio.sleep(0)
            await issuer.rotate(keep=False)
            before, reads = len(statuses), len(issuer.reads)
            while len(statuses) < before + 50:
                await asyncio.sleep(0)
            stopped.set()
            await asyncio.gather(*callers)

        assert set(statuses) == {200}
        assert issuer.reads[reads:] == ["/.well-known/openid-configuration", "/jwks"]


async def test_token_of_a_removed_key_is_rejected_once_the_keys_have_been_read(tmp_path: Path) -> None:
    async with fake_issuer() as issuer, serving(issuer, tmp_path) as gateway:
        old = token_of(issuer)
        assert (await ask(gateway, old))[0] == 200
        await issuer.rotate(keep=False)
        assert (await ask(gateway, token_of(issuer)))[0] == 200

        assert (await ask(gateway, old))[0] == 401


async def test_issuer_that_is_down_at_the_start_and_later(tmp_path: Path) -> None:
    async with fake_issuer() as issuer:
        await issuer.stop()
        async with serving(issuer, tmp_path) as gateway:
            status, body = await ask(gateway, token_of(issuer))
            assert (status, body["error"]["code"]) == (503, "key_unverified")
            assert (await ask(gateway, API_KEY))[0] == 200
            async with gateway.http.get(gateway.admin_url + "/ready") as answer:
                assert answer.status == 200
            assert (await gateway.status())["issuers"]["corp"]["problem"] is not None

            await issuer.restart()
            await gateway.wait_for_status(lambda status: status["issuers"]["corp"]["keys"] == 1)
            assert (await ask(gateway, token_of(issuer)))[0] == 200

            await issuer.stop()
            assert (await ask(gateway, token_of(issuer)))[0] == 200
            assert (await ask(gateway, token_of(issuer, aud="another")))[0] == 401


async def test_unknown_keys_cannot_make_the_gateway_flood_the_issuer(tmp_path: Path) -> None:
    async with fake_issuer() as issuer, serving(issuer, tmp_path) as gateway:
        reads = len(issuer.reads)
        forged = [token_of(issuer, key=signing_key(f"forged-{each}", "ES256", number=5)) for each in range(100)]

        answers = await asyncio.gather(*(ask(gateway, each) for each in forged))

        assert {status for status, _ in answers} == {401}
        # One read with discovery; later ones wait for the gap.
        assert len(issuer.reads) - reads <= 4


@pytest.mark.parametrize(
    "pages",
    [
        {"/jwks": {"keys": [signing_key(f"k{each}").public() for each in range(2_000)]}},
        {"/jwks": {"keys": [], "padding": "x" * 1_000_000}},
        {"/jwks": 500},
        {"/jwks": 302},
        {"/.well-known/openid-configuration": {"issuer": "https://evil.example.com", "jwks_uri": "https://evil"}},
    ],
    ids=["many keys", "large page", "error", "redirect", "other issuer"],
)
async def test_harmful_pages_of_the_issuer_leave_the_keys_in_use(pages: dict[str, Any], tmp_path: Path) -> None:
    async with fake_issuer() as issuer, serving(issuer, tmp_path) as gateway:
        issuer.pages = pages
        # An unknown key makes the gateway read the pages.
        status, _ = await ask(gateway, token_of(issuer, key=signing_key("unknown", "ES256", number=5)))

        assert status == 503
        assert (await gateway.status())["issuers"]["corp"]["problem"] is not None
        assert (await ask(gateway, token_of(issuer)))[0] == 200


async def test_oversized_tokens_are_rejected_before_they_are_parsed(tmp_path: Path) -> None:
    async with fake_issuer() as issuer:
        token = token_of(issuer, padding="x" * 20_000)
        async with serving(issuer, tmp_path) as gateway:
            async with gateway.post(chat(), headers={"authorization": f"Bearer {token}"}) as answer:
                assert answer.status == 431
        async with serving(
            issuer, tmp_path, limits={"field_bytes_max": "64KiB", "header_bytes_max": "128KiB"}
        ) as gateway:
            async with aiohttp.ClientSession() as large:
                async with large.post(
                    gateway.url + "/v1/chat/completions", json=chat(), headers={"authorization": f"Bearer {token}"}
                ) as answer:
                    assert answer.status == 401
            assert await metric(gateway, "headgate_tokens_rejected_total", reason="malformed") == 1


async def test_two_authorization_headers_are_rejected(tmp_path: Path) -> None:
    async with fake_issuer() as issuer, serving(issuer, tmp_path) as gateway:
        headers = [("authorization", f"Bearer {token_of(issuer)}"), ("authorization", f"Bearer {API_KEY}")]
        async with gateway.http.post(gateway.url + "/v1/chat/completions", json=chat(), headers=headers) as answer:
            assert answer.status == 400


async def test_issuers_change_with_a_reload(tmp_path: Path) -> None:
    async with fake_issuer() as first, fake_issuer(signing_key("k2", "ES256", 2)) as second, FakeEngine() as engine:
        config = config_for(first, engine)
        async with gateway_in_loop(config, tmp_path) as gateway:
            assert (await ask(gateway, token_of(first)))[0] == 200
            await gateway.rewrite(
                config_for(second, engine) | {each: config[each] for each in ("listen", "admin_listen")}
            )
            await gateway.wait_for_status(lambda status: status["issuers"]["corp"]["keys"] == 1)

            assert (await ask(gateway, token_of(first)))[0] == 401
            assert (await ask(gateway, token_of(second)))[0] == 200

            del (without := config | {})["identity"]
            await gateway.rewrite(without)
            assert (await ask(gateway, token_of(second)))[0] == 401
            assert (await gateway.status())["restart_needed"] == ["identity"]


async def test_issuer_with_a_private_authority(tmp_path: Path) -> None:
    """The gateway trusts the configured authority only, and reads its file again."""
    authority, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(other.pem)
    async with fake_issuer(tls=server_context(authority.server())) as issuer:
        async with serving(issuer, tmp_path, identity={"tls": {"ca": str(trusted)}}) as gateway:
            status = await gateway.wait_for_status(lambda status: status["issuers"]["corp"]["age_s"] is None)
            assert "certificate is not trusted" in status["issuers"]["corp"]["problem"]
            trusted.write_text(authority.pem)
            await gateway.wait_for_status(lambda status: status["issuers"]["corp"]["keys"] == 1)

            assert (await ask(gateway, token_of(issuer)))[0] == 200
