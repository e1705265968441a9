"""Is a configuration taken as a whole or not at all?

A misspelt key that is ignored is a limit that nobody enforces; a reload that reaches one part and not another is a
state that nobody has written down.
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

from headgate.config.load import load
from headgate.config.problems import ConfigErrors
from headgate.config.schema import (
    ClassSection,
    EndpointSection,
    File,
    HealthSection,
    LimitsSection,
    ModelSection,
    PoolSection,
    RetrySection,
    Section,
    TenantSection,
)
from headgate.engines.dialects import DIALECTS
from headgate.model.engine_profile import PROFILES
from headgate.wire.keys import digest
from testing.fake_engine import FakeEngine
from testing.gateway import Config, GatewayInLoop, a_config, chat, gateway_beside, gateway_in_loop
from tests.lessons.callers import RawCaller
from tests.lessons.scraped import series_of

SECTIONS: dict[str, type[Section]] = {
    "": File,
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
    """Every section is there, so that there is a place for each mistake."""
    config = a_config(url, limits={}, retry={}, health={}, classes={"interactive": {}})
    config["models"]["m"] = {"pools": ["small"]}
    config["pools"]["small"]["endpoints"] = [{"url": url}]
    return config


def misspelt(place: str, setting: str) -> tuple[Config, str]:
    """A right configuration with one setting that does not exist, and its name."""
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
def test_a_misspelt_setting_is_an_error_that_names_the_right_one(tmp_path: Path, place: str, setting: str) -> None:
    config, wrong = misspelt(place, setting)
    file = tmp_path / "headgate.yaml"
    file.write_text(yaml.safe_dump(config))

    with pytest.raises(ConfigErrors) as raised:
        load(file, {}, engines=DIALECTS.keys(), profiles=PROFILES)

    assert f'{wrong}: unknown key; did you mean "{setting}"?' in str(raised.value)


async def test_each_process_tells_which_configuration_it_has(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url)
        folders = [tmp_path / name for name in ("a", "b", "c")]
        found: list[tuple[str, str]] = []
        for number, folder in enumerate(folders):
            folder.mkdir()
            # Where it listens is its own, and the third has another limit.
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
    """Two configurations in which everything that a request meets is of one colour; in a mixture nothing would fit."""

    def of(colour: str, base: Config) -> Config:
        other = "blue" if colour == "red" else "red"
        return base | {
            "models": {"m": {"pools": [colour]}},
            "classes": {
                colour: {"band": 0, "pools": [colour]},
                other: {"band": 0, "pools": [other], "unnamed": False},
            },
            "tenants": {"laptop": {"classes": [colour]}},
            "error_docs": f"https://{colour}.example.com",
        }

    base = a_config()
    base["pools"] = {
        colour: {"engine": "vllm", "served_model": colour, "in_flight_max": 64, "endpoints": [url]}
        for colour, url in (("red", red_url), ("blue", blue_url))
    }
    return of("red", base), of("blue", base)


async def asked(gateway: GatewayInLoop, number: int) -> tuple[int, str, str]:
    """Status, class and engine of one request; every fifth is wrong, and meets only the pages about outcomes."""
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


async def test_under_load_every_request_sees_exactly_one_configuration(tmp_path: Path) -> None:
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
                    # Twice as many as there are callers: at least half of them began after the flip.
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


async def test_a_wrong_file_under_load_changes_nothing_and_is_told(tmp_path: Path) -> None:
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
async def test_a_process_reads_its_file_again_when_it_is_told_and_not_before(tmp_path: Path) -> None:
    """As a user does it: a file, and SIGHUP to the process."""
    async with FakeEngine(models=("red",)) as red, FakeEngine(models=("blue",)) as blue:
        right, other = colours(red.url, blue.url)
        async with gateway_beside(right, tmp_path) as (gateway, process):
            first = (await gateway.status())["config_hash"]
            gateway.file.write_text(yaml.safe_dump(other | {"limitss": {}}))
            os.kill(process.pid, signal.SIGHUP)
            told = await gateway.until(lambda status: status["reload_problems"])
            gateway.file.write_text(yaml.safe_dump(other))
            assert (await gateway.status())["config_hash"] == first
            os.kill(process.pid, signal.SIGHUP)
            second = await gateway.until(lambda status: status["config_hash"] != first)

    assert 'did you mean "limits"?' in str(told["reload_problems"])
    assert second["reload_problems"] == []


async def test_a_request_that_is_coming_in_during_a_reload_keeps_its_key(tmp_path: Path) -> None:
    """Its head was read under one configuration and its body under the next, in which its key has another tenant."""
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
            await gateway.until(lambda status: status["requests_open"] == 1)
            await gateway.rewrite(config | {"tenants": {"new-name": {"keys": [hashed]}}})
            caller._writer.write(content[10:])
            answer = await caller.read_until(b"\r\n\r\n")
            caller.leave()
            with contextlib.suppress(TimeoutError):
                await gateway.until_idle(seconds_max=1)

    assert answer.startswith(b"HTTP/1.1 200 "), answer
