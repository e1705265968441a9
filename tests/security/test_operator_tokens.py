"""The admin API accepts operators' tokens with the permissions of their roles, and no other tokens."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.wire.keys import digest, format_digest
from testing.fake_engine import FakeEngine
from testing.fake_issuer import AUDIENCE, FakeIssuer, fake_issuer, signing_key, token_of
from testing.gateway import GatewayInLoop, gateway_in_loop
from tests.security.test_caller_tokens import config_for

OPERATORS = "headgate-admin"
SECRET = "only for these tests"
KEY = "hg-operator"
HOLD = {"verb": "hold", "target": "batch", "duration_s": 60}


def with_operators(issuer: FakeIssuer, engine: FakeEngine, **changed: Any) -> dict[str, Any]:
    config = config_for(issuer, engine)
    roles = {"admin": ["platform"], "operator": ["on-call"], "accountant": ["finance"], "viewer": ["staff"]}
    config["identity"]["operators"] = {"issuer": "corp", "audience": OPERATORS, "roles": roles, **changed}
    return config


@asynccontextmanager
async def serving(issuer: FakeIssuer, folder: Path, **more: Any) -> AsyncIterator[GatewayInLoop]:
    async with FakeEngine() as engine:
        config = with_operators(issuer, engine) | more
        async with gateway_in_loop(config, folder) as gateway:
            yield gateway


def operator_token(issuer: FakeIssuer, group: str = "on-call", **changed: Any) -> str:
    return token_of(issuer, **{"aud": OPERATORS, "groups": [group], **changed})


async def ask(gateway: GatewayInLoop, path: str, token: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    headers = {"authorization": f"Bearer {token}"}
    async with gateway.http.post(f"{gateway.admin_url}/admin/v1/{path}", json=body or {}, headers=headers) as answer:
        return answer.status, await answer.json()


async def test_role_decides_which_requests_are_allowed(tmp_path: Path) -> None:
    async with fake_issuer() as issuer, serving(issuer, tmp_path) as gateway:
        status, override = await ask(gateway, "overrides/create", operator_token(issuer), HOLD)
        assert (status, override["created_by"]) == (200, "corp:alice")
        assert (await ask(gateway, "overrides/list", operator_token(issuer, "staff")))[0] == 200

        for group in ("staff", "finance", "unknown"):
            status, body = await ask(gateway, "overrides/create", operator_token(issuer, group), HOLD)
            assert (status, body["error"]["code"]) == (403, "permission_denied")
            assert 'operator "corp:alice" lacks the permission "operate"' in body["error"]["message"]


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        ("caller", "the token is not valid for operators"),
        ("expired", "the token has expired"),
        ("forged", "the token is not valid for operators"),
        ("none", "the token is not valid for operators"),
        ("issuer", "the token is not valid for operators"),
    ],
)
async def test_other_tokens_are_rejected(attack: str, said: str, tmp_path: Path) -> None:
    async with fake_issuer() as issuer, serving(issuer, tmp_path) as gateway:
        token = {
            "caller": operator_token(issuer, aud=AUDIENCE),
            "expired": operator_token(issuer, exp=1_000_000_000),
            "forged": operator_token(issuer, key=signing_key("k1", "ES256", number=5)),
            "none": operator_token(issuer, header={"alg": "none"}),
            "issuer": operator_token(issuer, iss="https://evil.example.com"),
        }[attack]

        status, body = await ask(gateway, "overrides/list", token)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        assert said in body["error"]["message"]


async def test_operators_tokens_are_rejected_for_callers(tmp_path: Path) -> None:
    async with fake_issuer() as issuer, serving(issuer, tmp_path) as gateway:
        token = operator_token(issuer, "platform", team="search")
        async with gateway.http.get(gateway.url + "/v1/usage", headers={"authorization": f"Bearer {token}"}) as answer:
            assert answer.status == 401


async def test_new_key_of_the_issuer_is_accepted(tmp_path: Path) -> None:
    async with fake_issuer() as issuer, serving(issuer, tmp_path) as gateway:
        await issuer.rotate(keep=False)
        assert (await ask(gateway, "overrides/list", operator_token(issuer)))[0] == 200


async def test_token_with_an_unknown_key_of_an_unreachable_issuer_gets_503(tmp_path: Path) -> None:
    async with fake_issuer() as issuer:
        await issuer.stop()
        async with serving(issuer, tmp_path) as gateway:
            status, body = await ask(gateway, "overrides/list", operator_token(issuer))
            assert (status, body["error"]["code"]) == (503, "key_unverified")


async def test_operator_keys_work_beside_tokens(tmp_path: Path) -> None:
    keys = {"ops": {"key": format_digest(digest(SECRET.encode(), KEY)), "role": "viewer"}}
    async with fake_issuer() as issuer, serving(issuer, tmp_path, admin_keys=keys) as gateway:
        assert (await ask(gateway, "overrides/list", KEY))[0] == 200
        assert (await ask(gateway, "overrides/create", KEY, HOLD))[0] == 403
        assert (await ask(gateway, "overrides/list", "hg-unknown"))[0] == 401


async def test_callers_cannot_use_an_issuer_without_a_tenant(tmp_path: Path) -> None:
    async with fake_issuer() as issuer, FakeEngine() as engine:
        config = with_operators(issuer, engine)
        config["identity"]["issuers"]["corp"] = {"issuer": issuer.url}
        async with gateway_in_loop(config, tmp_path) as gateway:
            assert (await ask(gateway, "overrides/list", operator_token(issuer)))[0] == 200
            headers = {"authorization": f"Bearer {token_of(issuer)}"}
            async with gateway.http.get(gateway.url + "/v1/usage", headers=headers) as answer:
                assert answer.status == 401
