"""Tests for reloading the configuration file."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from headgate.wire.keys import digest, format_digest
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import Config, a_config, chat, gateway_in_loop, gateway_process_with_client
from tests.lessons.scraped import series_of


async def test_invalid_file_changes_nothing_and_is_reported(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url)
        async with gateway_in_loop(config, tmp_path) as gateway:
            before = await gateway.status()
            await gateway.rewrite(config | {"heath": {}})
            after = await gateway.status()
            async with gateway.post(chat()) as answer:
                assert answer.status == 200

    assert after["config_hash"] == before["config_hash"]
    assert 'did you mean "health"?' in after["reload_problems"][0]


async def test_model_and_endpoint_are_added_while_a_stream_continues(tmp_path: Path) -> None:
    async with FakeEngine() as engine, FakeEngine() as other:
        config = a_config(engine.url)
        async with gateway_in_loop(config, tmp_path) as gateway:
            engine.script.append(Behaviour(tokens=3, hang_after=1))
            async with gateway.post(chat(stream=True)) as streaming:
                held = await engine.next_request()
                await held.hung.wait()
                config["pools"]["small"]["endpoints"] = [other.url]
                config["models"]["n"] = "small"
                await gateway.rewrite(config)
                await gateway.wait_for_status(lambda status: other.url[7:] in str(status["engines"]))
                leaving = [each for each in (await gateway.status())["endpoints"] if each["leaving"]]
                assert [each["in_flight"] for each in leaving] == [1]

                await gateway.wait_until_ready(2)
                async with gateway.post(chat(model="n")) as answer:
                    assert answer.status == 200
                assert len(other.requests) == 1

                held.resume.set()
                assert (await streaming.read()).endswith(b"data: [DONE]\n\n")
            await gateway.wait_for_status(lambda status: len(status["endpoints"]) == 1)


async def test_request_queued_for_a_removed_model_gets_404(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url, in_flight_max=1)
        config["models"]["n"] = "small"
        async with gateway_in_loop(config, tmp_path) as gateway:
            engine.script.append(Behaviour(hang_before_head=True))
            async with asyncio.TaskGroup() as group:
                group.create_task(status_of(gateway.post(chat())))
                held = await engine.next_request()
                waiting = group.create_task(status_of(gateway.post(chat(model="n"))))
                await gateway.wait_for_status(lambda status: status["queued"]["interactive"] == 1)
                del config["models"]["n"]
                await gateway.rewrite(config)
                assert await waiting == 404
                held.resume.set()


async def status_of(request: object) -> int:
    async with request as answer:  # type: ignore[attr-defined]
        return answer.status


async def test_status_shows_since_when_a_configuration_is_in_force(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url)
        async with gateway_in_loop(config, tmp_path) as gateway:
            before = await gateway.status()
            gateway.gateway._configuration.in_force_since = datetime(2026, 1, 1, tzinfo=UTC)
            await gateway.rewrite(config)
            unchanged = await gateway.status()
            await gateway.rewrite(config | {"drain_grace": "6s"})
            after = await gateway.status()

    assert datetime.fromisoformat(before["config_since"]) > datetime(2026, 1, 1, tzinfo=UTC)
    assert unchanged["config_since"] == "2026-01-01T00:00:00+00:00"
    assert datetime.fromisoformat(after["config_since"]) >= datetime.fromisoformat(before["config_since"])


async def test_metrics_and_status_show_a_rejected_file_until_it_is_fixed(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url, key_secret="${file:secret}")
        (tmp_path / "secret").write_text("a secret of this test")
        async with gateway_in_loop(config, tmp_path) as gateway:
            (tmp_path / "secret").unlink()
            await gateway.gateway.reload()
            rejected, series = await gateway.status(), await series_of(gateway)
            (tmp_path / "secret").write_text("a new secret of this test")
            await gateway.gateway.reload()
            fixed, fixed_series = await gateway.status(), await series_of(gateway)

    assert series["headgate_config_reload_successful{}"] == 0
    assert fixed_series["headgate_config_reload_successful{}"] == 1
    [problem] = rejected["reload_problems"]
    assert problem.endswith("/secret does not exist; create it, or correct the path in ${file:PATH}")
    assert fixed["reload_problems"] == []
    assert fixed["config_hash"] != rejected["config_hash"]


async def test_settings_that_need_a_restart_are_listed_until_they_are_reverted(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url)
        async with gateway_in_loop(config, tmp_path) as gateway:
            await gateway.rewrite(config | {"listen": "127.0.0.1:1", "drain_grace": "6s"})
            changed, series = await gateway.status(), await series_of(gateway)
            await gateway.rewrite(config | {"drain_grace": "7s"})
            reverted = await gateway.status()

    assert changed["restart_needed"] == ["listen"]
    assert series["headgate_config_restart_needed{}"] == 1
    assert reverted["restart_needed"] == []


async def test_key_secret_is_rotated_without_voiding_keys(tmp_path: Path) -> None:
    old, new, key, operator = "the old secret of this test", "the new secret of this test", "hg-key", "hg-operator"

    def hashed(secret: str, text: str) -> str:
        return format_digest(digest(secret.encode(), text))

    async with FakeEngine() as engine:
        config = a_config(engine.url, key_secret=old, tenants={"acme": {"keys": [hashed(old, key)]}})
        config["admin_keys"] = {"ops": {"key": hashed(old, operator), "permissions": ["read"]}}
        del config["anonymous_tenant"]
        async with gateway_in_loop(config, tmp_path) as gateway:

            async def statuses() -> tuple[int, int]:
                list_url = gateway.admin_url + "/admin/v1/overrides/list"
                async with (
                    gateway.post(chat(), headers={"authorization": f"Bearer {key}"}) as answer,
                    gateway.http.post(list_url, json={}, headers={"authorization": f"Bearer {operator}"}) as listed,
                ):
                    return answer.status, listed.status

            assert await statuses() == (200, 200)
            [first] = (await gateway.status())["key_secrets"]
            await gateway.rewrite(config | {"key_secret": [new, old]})
            assert await statuses() == (200, 200)
            both, series = (await gateway.status())["key_secrets"], await series_of(gateway)
            await gateway.rewrite(config | {"key_secret": new})
            assert await statuses() == (401, 401)

    assert [each["position"] for each in both] == [0, 1]
    assert [each["keys_verified"] for each in both] == [0, 2]
    assert both[0]["last_used"] is None
    assert datetime.fromisoformat(both[1]["last_used"]) > datetime(2026, 1, 1, tzinfo=UTC)
    assert both[1]["fingerprint"] == first["fingerprint"]
    assert series[f"headgate_keys_verified_total{{secret={first['fingerprint']}}}"] == 2


@pytest.mark.process
async def test_config_map_swap_reloads_while_streams_continue(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        secret, key = "a secret of this test", "hg-key"
        config = a_config(engine.url, key_secret="${file:..data/key_secret}", tenants={"laptop": {}, "acme": {}})
        config["tenants"]["acme"] = {"keys": [format_digest(digest(secret.encode(), key))]}
        volume = tmp_path / "volume"
        publish(volume, 1, config, "another secret of this test")
        (tmp_path / "headgate.yaml").symlink_to("volume/headgate.yaml")
        arguments = (f"--config={volume / 'headgate.yaml'}",)
        async with gateway_process_with_client(config, tmp_path, arguments=arguments) as (gateway, process):
            first = await gateway.status()
            engine.script.append(Behaviour(tokens=3, hang_after=1))
            async with gateway.post(chat(stream=True)) as streaming:
                held = await engine.next_request()
                await held.hung.wait()
                headers = {"authorization": f"Bearer {key}"}
                async with gateway.post(chat(), headers=headers) as answer:
                    assert answer.status == 401
                publish(volume, 2, config, secret)
                second = await gateway.wait_for_status(lambda status: status["config_hash"] != first["config_hash"])
                async with gateway.post(chat(), headers=headers) as answer:
                    assert answer.status == 200
                publish(volume, 3, config | {"limitss": {}}, secret)
                third = await gateway.wait_for_status(lambda status: status["reload_problems"])
                publish(volume, 4, config, secret)
                fourth = await gateway.wait_for_status(lambda status: not status["reload_problems"])
                held.resume.set()
                assert (await streaming.read()).endswith(b"data: [DONE]\n\n")
            log = process.log()

    assert second["config_hash"] == third["config_hash"] == fourth["config_hash"]
    assert log.count("configuration applied") == 1
    assert log.count("the new configuration is invalid") == 1
    assert secret not in log


def publish(volume: Path, version: int, config: Config, secret: str) -> None:
    """Publishes a version of a ConfigMap as the kubelet does: a new folder, and a link renamed over the old one."""
    (data := volume / f"..version_{version}").mkdir(parents=True)
    (data / "headgate.yaml").write_text(yaml.safe_dump(config))
    (data / "key_secret").write_text(f"{secret}\n")
    (link := volume / "..data_new").symlink_to(data.name)
    link.rename(volume / "..data")
    if not (volume / "headgate.yaml").is_symlink():
        (volume / "headgate.yaml").symlink_to("..data/headgate.yaml")
