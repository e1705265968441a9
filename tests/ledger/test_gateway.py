"""Keys in the database work like keys in the file, and a database failure is never blamed on the client."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from headgate.ledger.database import Database
from headgate.ledger.directory.postgres_directory import PostgresDirectory
from headgate.ports.directory import TenantSettings
from headgate.wire.keys import digest, format_digest
from testing.fake_engine import FakeEngine
from testing.fault_proxy import FaultProxy
from testing.gateway import Config, GatewayInLoop, a_config, chat, gateway_in_loop
from testing.ports import free_port
from testing.postgres import Postgres
from tests.ledger.databases import ADMIN, ANY, SECRET, migrated, scratch_database, until, with_key

pytestmark = pytest.mark.process

OPERATOR = {"authorization": "Bearer hg-operator"}
READER = {"authorization": "Bearer hg-reader"}


def hashed(key: str) -> str:
    return format_digest(digest(SECRET, key))


def config_with(engine: str, url: str, **settings: Any) -> Config:
    """A configuration with a database and one key in the file."""
    config = a_config(engine)
    del config["anonymous_tenant"]
    return config | {
        "key_secret": SECRET.decode(),
        "tenants": {"filed": {"keys": [hashed("hg-filed")]}},
        "database": {"url": url, "poll_interval": "5s"},
        "admin_keys": {
            "alice": {"key": hashed("hg-operator"), "permissions": ["read", "keys", "operate"]},
            "bob": {"key": hashed("hg-reader"), "permissions": ["read"]},
        },
        **settings,
    }


@asynccontextmanager
async def running(url: str, folder: Path, **settings: Any) -> AsyncIterator[GatewayInLoop]:
    async with FakeEngine() as engine:
        async with gateway_in_loop(config_with(engine.url, url, **settings), folder) as gateway:
            yield gateway


async def asked(gateway: GatewayInLoop, key: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    async with gateway.post(chat(), headers={"authorization": f"Bearer {key}"}) as answer:
        return answer.status, json.loads(await answer.read()), dict(answer.headers)


async def until_rejected(gateway: GatewayInLoop, key: str) -> None:
    async with asyncio.timeout(60):
        while (status := (await asked(gateway, key))[0]) != 401:
            assert status == 200
            await asyncio.sleep(0.02)


async def admin(gateway: GatewayInLoop, path: str, who: dict[str, str] = OPERATOR, **body: Any) -> tuple[int, Any]:
    async with gateway.http.post(f"{gateway.admin_url}/admin/v1/{path}", json=body, headers=who) as answer:
        return answer.status, await answer.json()


async def fresh(gateway: GatewayInLoop) -> None:
    await gateway.wait_for_status(lambda status: status["database"]["fresh"])


async def made(gateway: GatewayInLoop, key: str = "acme/search/ci", **terms: Any) -> str:
    organisation, project, _ = key.split("/")
    await admin(gateway, "tenants/create", tenant=organisation)
    await admin(gateway, "tenants/create", tenant=f"{organisation}/{project}")
    status, said = await admin(gateway, "keys/create", key=key, **terms)
    assert status == 200, said
    return said["secret"]


async def test_key_works_from_creation_to_revocation(url: str, tmp_path: Path) -> None:
    async with running(url, tmp_path) as gateway:
        await fresh(gateway)
        assert (await asked(gateway, "hg-nobody"))[0] == 401
        secret = await made(gateway)
        assert (await asked(gateway, secret))[0] == 200
        assert (await asked(gateway, "hg-filed"))[0] == 200

        _, rotated = await admin(gateway, "keys/rotate", key="acme/search/ci", overlap_s=600)
        assert (await asked(gateway, secret))[0] == 200
        assert (await asked(gateway, rotated["secret"]))[0] == 200
        _, latest = await admin(gateway, "keys/rotate", key="acme/search/ci", overlap_s=1)
        await until_rejected(gateway, rotated["secret"])
        assert (await asked(gateway, latest["secret"]))[0] == 200

        await admin(gateway, "keys/revoke", key="acme/search/ci")
        status, body, _ = await asked(gateway, latest["secret"])
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")


async def test_scopes_narrow_and_limits_apply_at_each_tenant_level(url: str, tmp_path: Path) -> None:
    async with running(url, tmp_path) as gateway:
        await fresh(gateway)
        # The two rejected requests also count towards the limit.
        await admin(gateway, "tenants/create", tenant="acme", requests_per_minute=4)
        await admin(gateway, "tenants/create", tenant="acme/search", classes=["interactive"])
        _, one = await admin(gateway, "keys/create", key="acme/search/one", plan="critical")
        _, two = await admin(gateway, "keys/create", key="acme/search/two", models=["another"])

        headers = {"authorization": f"Bearer {one['secret']}", "x-headgate-class": "batch"}
        async with gateway.post(chat(), headers=headers) as answer:
            assert answer.status == 403
        assert (await asked(gateway, two["secret"]))[0] == 404
        assert (await asked(gateway, one["secret"]))[0] == 200
        assert (await asked(gateway, one["secret"]))[0] == 200
        status, _, headers = await asked(gateway, one["secret"])
        assert status == 429
        assert int(headers["Retry-After"]) >= 1

        await admin(gateway, "tenants/change", tenant="acme")
        assert (await asked(gateway, one["secret"]))[0] == 200


async def test_usage_endpoint_shows_the_keys_limits(url: str, tmp_path: Path) -> None:
    async with running(url, tmp_path) as gateway:
        await fresh(gateway)
        secret = await made(gateway, requests_per_minute=2, classes=["interactive"])
        await asked(gateway, secret)
        async with gateway.http.get(gateway.url + "/v1/usage", headers={"authorization": f"Bearer {secret}"}) as answer:
            said = await answer.json()
        async with gateway.http.get(gateway.url + "/v1/usage") as answer:
            assert answer.status == 401

    assert said["tenant"] == "acme/search/ci"
    assert said["classes"] == ["interactive"]
    assert said["limits"] == [{"tenant": "acme/search/ci", "requests_per_minute": 2}]
    assert (said["requests"]["limit"], said["requests"]["remaining"]) == (2, 1)
    assert 0 < said["requests"]["reset_s"] <= 30


async def test_tenant_in_the_file_takes_precedence_over_the_database(url: str, tmp_path: Path) -> None:
    async with running(url, tmp_path, tenants={"acme/search/ci": {"keys": [hashed("hg-filed")]}}) as gateway:
        await fresh(gateway)
        secret = await made(gateway)
        status = await gateway.status()

        assert status["database"]["shadowed_by_file"] == ["acme/search/ci"]
        assert (await asked(gateway, "hg-filed"))[0] == 200
        assert (await asked(gateway, secret))[0] == 401


async def test_gateway_is_ready_without_a_database_only_if_the_file_has_keys(
    tmp_path: Path,
) -> None:
    away = f"postgresql://nobody:geheim@127.0.0.1:{free_port()}/none"
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with running(away, tmp_path / "one") as gateway:
        await gateway.wait_for_status(lambda status: "connection failed" in status["database"]["problem"])
        async with gateway.http.get(gateway.admin_url + "/ready") as answer:
            assert answer.status == 200
        assert (await asked(gateway, "hg-filed"))[0] == 200
        status, body, headers = await asked(gateway, "hg-unknown")
        page = json.dumps(await gateway.status())

    assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "key_unverified", "5")
    assert "database" in body["error"]["message"]
    assert "geheim" not in page + json.dumps(body)

    async with running(away, tmp_path / "two", tenants={}) as gateway:
        async with gateway.http.get(gateway.admin_url + "/ready") as answer:
            assert answer.status == 503
            assert "no key is known" in await answer.text()
        async with gateway.post(chat()) as answer:
            assert answer.status == 401, "a request without a key must be rejected without the database"


async def test_gateway_is_not_ready_with_an_unmigrated_database(empty_url: str, tmp_path: Path) -> None:
    async with running(empty_url, tmp_path) as gateway:
        await gateway.wait_for_status(lambda status: "migrate" in (status["database"]["problem"] or ""))
        async with gateway.http.get(gateway.admin_url + "/ready") as answer:
            assert answer.status == 503
            assert "headgate ledger migrate" in await answer.text()


async def test_known_keys_work_while_the_database_is_down_and_unknown_keys_get_503(
    mortal_postgres: Postgres, tmp_path: Path
) -> None:
    async with scratch_database(mortal_postgres) as url:
        await migrated(url)
        async with running(url, tmp_path) as gateway:
            await fresh(gateway)
            secret = await made(gateway)
            _, short = await admin(gateway, "keys/create", key="acme/search/short", expires_in_s=1)
            mortal_postgres.kill()
            await gateway.wait_for_status(lambda status: not status["database"]["fresh"])
            seen = [await asked(gateway, key) for key in [secret, "hg-unknown", "hg-filed"] * 10]
            status, said = await admin(gateway, "keys/create", key="acme/search/late")
            assert (status, said["error"]["code"]) == (503, "database_unavailable")

            assert [each[0] for each in seen] == [200, 503, 200] * 10
            # The gateway checks the expiry without the database.
            await until_rejected(gateway, short["secret"])

            mortal_postgres.restart()
            await gateway.wait_for_status(lambda status: status["database"]["fresh"])
            assert (await asked(gateway, "hg-unknown"))[0] == 401
            assert (await asked(gateway, secret))[0] == 200


async def test_requests_do_not_query_the_database(url: str, tmp_path: Path) -> None:
    database = Database(url)
    await with_key(PostgresDirectory(database), "acme/search/ci", "hg-one")
    await database.stop()
    async with FaultProxy(int(urlsplit(url).port or 0)) as proxy:
        through = url.replace(f":{urlsplit(url).port}/", f":{proxy.port}/")
        # Polls are so far apart that only notifications and requests could cause queries.
        async with running(through, tmp_path, database={"url": through, "poll_interval": "10m"}) as gateway:
            await fresh(gateway)
            before = proxy.questions.total()
            answers = [await asked(gateway, key) for key in ["hg-one", "hg-nobody", "hg-filed"] * 20]
            async with gateway.http.get(gateway.url + "/v1/usage", headers={"authorization": "Bearer hg-one"}) as said:
                assert said.status == 200
            assert proxy.questions.total() == before
            # Operator requests do query the database, which shows that the proxy counts queries.
            assert (await admin(gateway, "tenants/list"))[0] == 200
            assert proxy.questions.total() > before

    assert [each[0] for each in answers] == [200, 401, 200] * 20


async def test_overrides_apply_until_they_end(url: str, tmp_path: Path) -> None:
    async with running(url, tmp_path) as gateway:
        await fresh(gateway)
        secret = await made(gateway)
        [endpoint] = [each["id"] for each in (await gateway.status())["endpoints"]]

        status, order = await admin(
            gateway, "overrides/create", verb="throttle", target="acme", duration_s=60, concurrency=1
        )
        assert status == 200, order
        await admin(gateway, "overrides/end", override=order["override"])
        await admin(gateway, "overrides/create", verb="throttle", target="acme", duration_s=60, requests_per_minute=1)
        assert [(await asked(gateway, secret))[0] for _ in range(2)] == [200, 429]
        assert (await asked(gateway, "hg-filed"))[0] == 200

        _, order = await admin(
            gateway, "overrides/create", verb="drain", target=endpoint, duration_s=60, reason="new driver"
        )
        [seen] = (await gateway.status())["endpoints"]
        assert seen["drained"]
        assert (await asked(gateway, "hg-filed"))[0] == 503
        await admin(gateway, "overrides/end", override=order["override"])
        assert (await asked(gateway, "hg-filed"))[0] == 200

        _, order = await admin(gateway, "overrides/create", verb="hold", target="interactive", duration_s=60)
        held = asyncio.create_task(asked(gateway, "hg-filed"))
        await gateway.wait_for_status(lambda status: status["queued"].get("interactive") == 1, seconds_max=60)
        await admin(gateway, "overrides/end", override=order["override"])
        assert (await held)[0] == 200
        await admin(gateway, "overrides/create", verb="hold", target="interactive", duration_s=1)
        assert (await asked(gateway, "hg-filed"))[0] == 200, "the override did not expire"

        status, refused = await admin(gateway, "overrides/create", verb="hold", target="interactiv", duration_s=1)
        assert status == 404
        assert "interactive" in refused["error"]["message"]
        _, audit = await admin(gateway, "audit/list")

    assert [each["action"] for each in audit["data"]][:2] == ["override.hold", "override.end"]
    assert {each["actor"] for each in audit["data"]} == {"alice"}
    assert {each["origin"] for each in audit["data"]} == {"127.0.0.1"}


async def test_reload_keeps_tenants_from_the_database(url: str, tmp_path: Path) -> None:
    async with running(url, tmp_path) as gateway:
        await fresh(gateway)
        secret = await made(gateway)
        config = yaml.safe_load(gateway.file.read_text()) | {"fairness_depth": 2}
        await gateway.rewrite(config)

        assert (await asked(gateway, secret))[0] == 200


async def test_policy_uses_tenant_terms_from_the_database(url: str, tmp_path: Path) -> None:
    database = Database(url)
    directory = PostgresDirectory(database)
    await with_key(directory, "acme/search/ci", "hg-one", TenantSettings(weight=7, concurrency=3))
    await directory.change_tenant("acme", TenantSettings(plan="critical"), ADMIN)
    async with running(url, tmp_path) as gateway:
        await fresh(gateway)
        inside = gateway.gateway._accounts._directory
        assert inside is not None
        tenant = inside.tenant("acme/search/ci")  # type: ignore[arg-type]
        assert tenant is not None
        assert (tenant.weight, tenant.plan, tenant.limits.concurrency) == (7, "critical", 3)
        await directory.remove_tenant("acme", ADMIN)
        await until(lambda: inside.tenant("acme/search/ci") is None)  # type: ignore[arg-type]
        assert (await asked(gateway, "hg-one"))[0] == 401
        await directory.create_tenant("acme", ANY, ADMIN)
    await database.stop()
