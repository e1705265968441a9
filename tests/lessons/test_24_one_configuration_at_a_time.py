"""A configuration is applied completely or not at all.

If a misspelt key were ignored, its limit would not be enforced. If a reload reached only some components, the gateway
would be in a state that no configuration file describes.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections import Counter
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from msgspec import inspect

from headgate.config.class_schema import ClassSection
from headgate.config.load import load
from headgate.config.pool_schema import EndpointSection, PoolSection
from headgate.config.problems import ConfigErrors
from headgate.config.schema import ConfigFile, HealthSection, LimitsSection, ModelSection, RetrySection, TenantSection
from headgate.config.section import Section
from headgate.engines.dialects import DIALECTS
from headgate.model.engine_profile import PROFILES
from headgate.wire.keys import digest
from testing.fake_engine import FakeEngine
from testing.gateway import Config, GatewayInLoop, a_config, chat, gateway_in_loop, gateway_process_with_client
from tests.lessons.callers import RawCaller
from tests.lessons.scraped import series_of

SECTIONS: dict[str, type[Section]] = {
    "": ConfigFile,
    "limits": LimitsSection,
    "retry": RetrySection,
    "health": HealthSection,
    "pools.small": PoolSection,
    "pools.small.endpoints.0": EndpointSection,
    "models.m": ModelSection,
    "classes.interactive": ClassSection,
    "tenants.laptop": TenantSection,
}


def a_full_config(url: str = "http://127.0.0.1:1") -> Config:
    """Configuration with every section, so that each of them can contain an error."""
    config = a_config(url, limits={}, retry={}, health={}, classes={"interactive": {}})
    config["models"]["m"] = {"pools": ["small"]}
    config["pools"]["small"]["endpoints"] = [{"url": url}]
    return config


def misspelt(place: str, setting: str) -> tuple[Config, str]:
    """Return a configuration with one misspelt setting, and the misspelt name."""
    wrong = setting + setting[-1]
    config = deepcopy(a_full_config())
    section = config
    for step in place.split(".") if place else ():
        section = section[int(step) if step.isdigit() else step]
    section[wrong] = section.pop(setting, 1)
    return config, wrong


def settings_of(section: type[Section]) -> list[str]:
    info = inspect.type_info(section)
    assert isinstance(info, inspect.StructType)
    return [field.name for field in info.fields]


EVERY_SETTING = [(place, setting) for place, section in SECTIONS.items() for setting in settings_of(section)]


@pytest.mark.parametrize(("place", "setting"), EVERY_SETTING, ids=lambda text: text or "file")
def test_misspelled_setting_error_suggests_the_correct_name(tmp_path: Path, place: str, setting: str) -> None:
    config, wrong = misspelt(place, setting)
    file = tmp_path / "headgate.yaml"
    file.write_text(yaml.safe_dump(config))

    with pytest.raises(ConfigErrors) as raised:
        load(file, {}, engines=DIALECTS.keys(), profiles=PROFILES)

    assert f'{wrong}: unknown key; did you mean "{setting}"?' in str(raised.value)


async def test_each_process_reports_its_configuration_hash(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url)
        folders = [tmp_path / name for name in ("a", "b", "c")]
        found: list[tuple[str, str]] = []
        for number, folder in enumerate(folders):
            folder.mkdir()
            # The first two have their own listen addresses, and the third has a different limit.
            ports = {name: a_config()[name] for name in ("listen", "admin_listen")} if number < 2 else {}
            limits = {"requests_open_max": 77} if number == 2 else {}
            async with gateway_in_loop(config | ports | {"limits": limits}, folder) as gateway:
                status = await gateway.status()
                [info] = [name for name in await series_of(gateway) if name.startswith("headgate_config_info{")]
                found.append((status["config_hash"], info))

    assert all(info == f"headgate_config_info{{hash={told}}}" for told, info in found)
    hashes = [told for told, _ in found]
    assert hashes[2] not in hashes[:2]


# Reloads under load


def colours(red_url: str, blue_url: str) -> tuple[Config, Config]:
    """Return two configurations, each with one colour in every setting a request uses. A mixture would not work."""

    def of(colour: str, base: Config) -> Config:
        other = "blue" if colour == "red" else "red"
        return base | {
            "models": {"m": {"pools": [colour]}},
            "classes": {
                colour: {"priority_band": 0, "pools": [colour]},
                other: {"priority_band": 0, "pools": [other], "accepts_unclassified": False},
            },
            "tenants": {"laptop": {"classes": [colour]}},
            "error_docs_url": f"https://{colour}.example.com",
        }

    base = a_config()
    base["pools"] = {
        colour: {"engine": "vllm", "served_model": colour, "in_flight_max": 64, "endpoints": [url]}
        for colour, url in (("red", red_url), ("blue", blue_url))
    }
    return of("red", base), of("blue", base)


async def asked(gateway: GatewayInLoop, number: int) -> tuple[int, str, str]:
    """Send a request and return its status, class and engine. One in five is invalid and uses only `error_docs_url`."""
    wrong = number % 5 == 0
    body = chat(model="no-such-model" if wrong else "m", max_tokens=2, stream=bool(number % 2))
    async with gateway.post(body) as answer:
        text = await answer.text()
        if wrong:
            return answer.status, text.partition("https://")[2].partition(".")[0], "wrong"
        if answer.status != 200:
            return answer.status, answer.headers.get("x-headgate-class", "none"), text
        first = text.removeprefix("data: ").partition("\n\n")[0]
        return answer.status, answer.headers["x-headgate-class"], json.loads(first)["model"]


async def test_every_request_sees_exactly_one_configuration_during_reloads(tmp_path: Path) -> None:
    async with FakeEngine(models=("red",)) as red, FakeEngine(models=("blue",)) as blue:
        files = colours(red.url, blue.url)
        async with gateway_in_loop(files[0], tmp_path) as gateway:
            seen: Counter[tuple[int, str, str]] = Counter()
            hashes: set[str] = set()
            over = asyncio.Event()

            async def call(number: int) -> None:
                while not over.is_set():
                    seen[await asked(gateway, number)] += 1
                    number += 1

            async with asyncio.TaskGroup() as group:
                for number in range(12):
                    group.create_task(call(number))
                for flip in range(20):
                    await gateway.rewrite(files[(flip + 1) % 2])
                    hashes.add((await gateway.status())["config_hash"])
                    # Twice as many as there are callers, so that at least half of them began after the reload.
                    enough = seen.total() + 24
                    while seen.total() < enough:
                        await asyncio.sleep(0)
                over.set()
            problems = (await gateway.status())["reload_problems"]

    assert set(seen) == {
        (200, "red", "red"),
        (200, "blue", "blue"),
        (404, "red", "wrong"),
        (404, "blue", "wrong"),
    }
    assert min(seen.values()) >= 5, seen
    assert len(hashes) == 2
    assert problems == []


async def test_invalid_file_changes_nothing_and_is_reported(tmp_path: Path) -> None:
    async with FakeEngine(models=("red",)) as red, FakeEngine(models=("blue",)) as blue:
        right, other = colours(red.url, blue.url)
        wrong = other | {"healht": {}}
        async with gateway_in_loop(right, tmp_path) as gateway:
            before = await gateway.status()
            load = asyncio.gather(*(asked(gateway, number) for number in range(1, 40)))
            for _ in range(5):
                await gateway.rewrite(wrong)
            during = await gateway.status()
            endings = {ending for ending in await load if ending[2] != "wrong"}
            await gateway.rewrite(right)
            after = await gateway.status()

    assert endings == {(200, "red", "red")}
    assert during["config_hash"] == after["config_hash"] == before["config_hash"]
    assert 'did you mean "health"?' in str(during["reload_problems"])
    assert after["reload_problems"] == []


@pytest.mark.process
async def test_process_reloads_its_file_only_on_sighup_if_configured(tmp_path: Path) -> None:
    """Changes the file and sends SIGHUP to the process, as an operator would."""
    async with FakeEngine(models=("red",)) as red, FakeEngine(models=("blue",)) as blue:
        right, other = ({**each, "reload": "signal"} for each in colours(red.url, blue.url))
        async with gateway_process_with_client(right, tmp_path) as (gateway, process):
            first = (await gateway.status())["config_hash"]
            gateway.file.write_text(yaml.safe_dump(other | {"limitss": {}}))
            os.kill(process.pid, signal.SIGHUP)
            told = await gateway.wait_for_status(lambda status: status["reload_problems"])
            gateway.file.write_text(yaml.safe_dump(other))
            assert (await gateway.status())["config_hash"] == first
            os.kill(process.pid, signal.SIGHUP)
            second = await gateway.wait_for_status(lambda status: status["config_hash"] != first)

    assert 'did you mean "limits"?' in str(told["reload_problems"])
    assert second["reload_problems"] == []


async def test_request_arriving_during_a_reload_keeps_its_key(tmp_path: Path) -> None:
    """The head is read with one configuration and the body with the next, where the key has another tenant."""
    secret, key = "a secret of this test", "hg-key"
    hashed = f"hmac-sha256:{digest(secret.encode(), key).hex()}"
    async with FakeEngine() as engine:
        config = a_config(engine.url, key_secret=secret, tenants={"old-name": {"keys": [hashed]}})
        del config["anonymous_tenant"]
        async with gateway_in_loop(config, tmp_path) as gateway:
            caller = await RawCaller.to(gateway.url)
            content = json.dumps(chat()).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
            caller._writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content[:10])
            await gateway.wait_for_status(lambda status: status["requests_open"] == 1)
            await gateway.rewrite(config | {"tenants": {"new-name": {"keys": [hashed]}}})
            caller._writer.write(content[10:])
            answer = await caller.read_until(b"\r\n\r\n")
            caller.leave()
            with contextlib.suppress(TimeoutError):
                await gateway.wait_until_idle(seconds_max=1)

    assert answer.startswith(b"HTTP/1.1 200 "), answer
