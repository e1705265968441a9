"""Prompts, responses and keys must not leak outside the client's own response.

A gateway process at its most verbose log level handles every kind of request and failure. The test then searches logs,
admin pages and other clients' responses for strings that appeared only in one client's requests and one file.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate.telemetry.records.segment import blocks, rows_of
from headgate.telemetry.records.segment_writer import segments
from headgate.wire.keys import digest, format_digest
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import Config, RunningGateway, a_config, chat, gateway_process_with_client
from testing.processes import ChildProcess

pytestmark = pytest.mark.process

SECRET, KEY, ENGINE_KEY = "canary-secret-of-the-gateway", "hg-canary-key-of-a-caller", "canary-key-of-the-engine"
PROMPT, ANSWER, IDEMPOTENCY = "canary-prompt", "canary-answer", "canary-idempotency-key"
WORDS = (SECRET, KEY, ENGINE_KEY, PROMPT, ANSWER, IDEMPOTENCY)
OTHER_KEY = "hg-key-of-another-caller"
RECORDS = "records"
KEY_FILE = "engine-key"
HEADERS = {"authorization": f"Bearer {KEY}", "idempotency-key": IDEMPOTENCY}
TALKATIVE = ("--log-level", "debug", "--log-format", "json")

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"' + ANSWER.encode() + b'"}}]}\n\n'
GOOD = b'{"choices":[{"index":0,"message":{"content":"' + ANSWER.encode() + b'"}}]}'
STREAMED = (
    Behaviour(body=EVENT + b"data: [DONE]\n\n"),
    Behaviour(body=EVENT),
    Behaviour(body=EVENT + b'data: {"error":{"message":"no"}}\n\n'),
    Behaviour(body=EVENT.rstrip()),
    Behaviour(status=500, error="engine failure"),
    Behaviour(status=400, error="invalid request"),
    Behaviour(drop_before_head=True),
    Behaviour(body=GOOD, content_type="application/json"),
)
WHOLE = (
    Behaviour(body=GOOD),
    Behaviour(body=GOOD[:-3]),
    Behaviour(body=GOOD, cut_after=0),
    Behaviour(body=EVENT, content_type="text/event-stream"),
    Behaviour(status=503, error="busy"),
    Behaviour(drop_before_head=True),
)
# Engines often quote the prompt or partial output in error messages.
ECHOING = (
    Behaviour(status=500, error=f"cannot process [{PROMPT}]"),
    Behaviour(status=400, error=f"input_value={PROMPT!r}"),
    Behaviour(status=422, body=json.dumps({"detail": [{"msg": "bad", "input": PROMPT}]}).encode()),
    Behaviour(status=500, body=f"Traceback: {PROMPT} {ANSWER} {ENGINE_KEY}".encode()),
    Behaviour(body=b'data: {"error":{"message":"stopped after ' + ANSWER.encode() + b'"}}\n\n'),
    Behaviour(body=EVENT + b'data: {"error":{"message":"stopped after ' + ANSWER.encode() + b'"}}\n\n'),
    Behaviour(body=b'{"error":{"message":"' + PROMPT.encode() + b'"}}', content_type="application/json"),
    Behaviour(body=PROMPT.encode(), content_type=f"text/{PROMPT}"),
)


@dataclass
class Stage:
    engine: FakeEngine
    gateway: RunningGateway
    process: ChildProcess
    heard: dict[str, str] = field(default_factory=dict)
    """Output that reached anyone other than the client: operators and another client."""
    names: list[str] = field(default_factory=list)
    """Request ids from the responses."""

    async def ask(self, body: Config, path: str = "/v1/chat/completions", **headers: str) -> int:
        async with self.gateway.post(body, path, headers=HEADERS | headers) as answer:
            await answer.read()
            self.names.append(answer.headers["x-request-id"])
            return answer.status

    async def overhear(self, moment: str) -> None:
        explained = [f"/explain/{name}" for name in self.names]
        for path in ("/metrics", "/status", "/ready", "/requests?limit=200", *explained):
            async with self.gateway.http.get(self.gateway.admin_url + path) as page:
                self.heard[f"{path} {moment}"] = await page.text() + str(page.headers)
        for body in (chat("hi"), chat("hi", stream=True), chat("hi", model="unknown"), chat("hi", n=0)):
            headers = {"authorization": f"Bearer {OTHER_KEY}"}
            async with self.gateway.post(body, headers=headers) as answer:
                self.heard[f"{len(self.heard)} {moment}"] = await answer.text() + str(answer.headers)

    async def leave(self) -> None:
        self.process.terminate()
        await asyncio.to_thread(self.process.wait_until_ended)
        self.heard["the log"] = self.process.log()
        self.heard["the records"] = repr(
            [
                row
                for path in segments(self.gateway.file.parent / RECORDS)
                for block, _ in blocks(path)
                for row in rows_of(block, range(block.rows))
            ]
        )

    @property
    def found(self) -> dict[str, list[str]]:
        """Where each secret was found, with the surrounding text."""
        return {
            word: [
                f"{where}: …{text[max(0, at - 120) : at + 40]}"
                for where, text in self.heard.items()
                if (at := text.find(word)) >= 0
            ]
            for word in WORDS
            if any(word in text for text in self.heard.values())
        }


@asynccontextmanager
async def a_stage(folder: Path, *, hosted: bool = False) -> AsyncIterator[Stage]:
    """With `hosted`, the engine is a hosted provider, whose key has a header of its own."""
    async with FakeEngine(api_key=ENGINE_KEY) as engine:
        config = config_for(engine) | {"records": {"directory": str(folder / RECORDS)}}
        # One secret is in the configuration file, the other in a file of its own.
        (folder / KEY_FILE).write_text(f"{ENGINE_KEY}\n")
        config["pools"]["small"]["api_key"] = f"${{file:{KEY_FILE}}}"
        if hosted:
            engine.api_key_header = "x-api-key"
            config["pools"]["small"] |= {"engine": "provider", "api_key_header": "x-api-key"}
        async with gateway_process_with_client(config, folder, arguments=TALKATIVE) as (gateway, process):
            yield Stage(engine, gateway, process)


def config_for(engine: FakeEngine) -> Config:
    config = a_config(
        engine.url, key_secret=SECRET, retry={"attempts_max": 1}, health={"consecutive_failures_max": 1_000}
    )
    config["pools"]["small"]["api_key"] = ENGINE_KEY
    config["tenants"] = {
        "acme": {"keys": [format_digest(digest(SECRET.encode(), KEY))]},
        "bolt": {"keys": [format_digest(digest(SECRET.encode(), OTHER_KEY))]},
    }
    del config["anonymous_tenant"]
    return config


async def test_output_contains_no_prompt_response_or_key(tmp_path: Path) -> None:
    async with a_stage(tmp_path) as stage:
        for behaviours, stream in ((STREAMED, True), (WHOLE, False)):
            for behaviour in behaviours:
                stage.engine.script.append(behaviour)
                await stage.ask(chat(PROMPT, stream=stream))
        await stage.ask({"model": "m", "prompt": PROMPT}, "/v1/completions")
        await stage.ask({"model": "m", "input": PROMPT}, "/v1/embeddings")
        await stage.overhear("after responses")
        for wrong in WRONG:
            assert await stage.ask(wrong) in {400, 404}
        assert await stage.ask(chat(PROMPT), authorization=f"Bearer {KEY}x") == 401
        assert await stage.ask(chat(PROMPT), authorization=f"Basic {KEY}") == 401
        assert await stage.ask(chat(PROMPT), f"/v1/{PROMPT}?key={KEY}") == 404
        await stage.overhear("after rejections")
        await stage.leave()

    assert '"message":"request ended"' in stage.heard["the log"]
    for name in stage.names:
        assert name in stage.heard["the records"]
        assert name in stage.heard["/requests?limit=200 after rejections"]
    assert stage.found == {}


WRONG: tuple[Any, ...] = (
    {"model": PROMPT},
    {"model": "m", "messages": PROMPT},
    {"model": "m", "messages": [PROMPT], "cache_salt": [PROMPT]},
    chat(PROMPT, model="unknown"),
    chat(PROMPT, stream=PROMPT),
    chat(PROMPT, n=PROMPT),
    chat(PROMPT, stream_options={"include_usage": PROMPT}),
)


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "non-streaming"])
async def test_engine_error_quoting_the_prompt_is_not_logged(tmp_path: Path, stream: bool) -> None:
    async with a_stage(tmp_path) as stage:
        for behaviour in ECHOING:
            stage.engine.script.append(behaviour)
            await stage.ask(chat(PROMPT, stream=stream))
        await stage.overhear("after echoes")
        await stage.leave()

    assert len(stage.engine.requests) > len(ECHOING)
    assert stage.found == {}


async def test_key_and_prompts_at_a_hosted_provider_are_not_logged(tmp_path: Path) -> None:
    limits = (
        ("retry-after", ENGINE_KEY),
        ("x-ratelimit-remaining-requests", PROMPT),
        ("x-ratelimit-reset-tokens", KEY),
    )
    echoing = (
        *ECHOING,
        Behaviour(status=401, error=f"wrong key {ENGINE_KEY}"),
        Behaviour(status=429, error=f"{ENGINE_KEY} asks {PROMPT} too often", headers=limits),
        Behaviour(body=GOOD, headers=limits),
    )
    async with a_stage(tmp_path, hosted=True) as stage:
        for behaviour in echoing:
            stage.engine.script.append(behaviour)
            await stage.ask(chat(PROMPT, user=KEY, metadata={"key": SECRET}))
        await stage.overhear("after echoes")
        await stage.leave()

    assert len(stage.engine.requests) >= len(echoing)
    assert all(KEY not in str(each.headers) + each.raw.decode() for each in stage.engine.requests)
    assert stage.found == {}


async def test_invalid_file_dead_engine_and_shutdown_leak_no_secret(tmp_path: Path) -> None:
    async with a_stage(tmp_path) as stage:
        good = stage.gateway.file.read_text()
        for wrong in (wrong_types, misplaced_secrets, misplaced_file, no_yaml):
            stage.gateway.file.write_text(wrong(good))
            os.kill(stage.process.pid, signal.SIGHUP)
            await stage.gateway.wait_for_status(lambda status: status["reload_problems"])
            await stage.overhear(f"with {wrong.__name__}")
            stage.gateway.file.write_text(good)
            os.kill(stage.process.pid, signal.SIGHUP)
            await stage.gateway.wait_for_status(lambda status: not status["reload_problems"])
        for content in (b"\xff", b"\0", b"x" * 100_000):
            (tmp_path / KEY_FILE).write_bytes(ENGINE_KEY.encode() + content)
            await stage.gateway.wait_for_status(lambda status: status["reload_problems"])
            await stage.overhear(f"with a file that ends with {content[:1]!r}")
            (tmp_path / KEY_FILE).write_text(ENGINE_KEY)
            await stage.gateway.wait_for_status(lambda status: not status["reload_problems"])
        await crash_and_leave(stage)

    assert "the new configuration is invalid" in stage.heard["the log"]
    assert stage.found == {}


async def crash_and_leave(stage: Stage) -> None:
    """Kill the engine during one request and shut the gateway down during another."""
    stage.engine.behaviour = Behaviour(body=None, hang_after=1)
    asking = asyncio.create_task(stage.ask(chat(PROMPT, stream=True)))
    received = await stage.engine.next_request()
    while received.json["messages"] != chat(PROMPT)["messages"]:
        received = await stage.engine.next_request()
    await received.hung.wait()
    await stage.engine.kill()
    await asking
    await stage.engine.start()
    await stage.gateway.wait_until_ready(1)
    asking = asyncio.create_task(stage.ask(chat(PROMPT, stream=True)))
    await (await stage.engine.next_request()).hung.wait()
    await stage.leave()
    await asyncio.gather(asking, return_exceptions=True)


def wrong_types(good: str) -> str:
    config = yaml.safe_load(good)
    config["key_secret"] = {"value": SECRET}
    config["pools"]["small"]["api_key"] = {"value": ENGINE_KEY}
    return yaml.safe_dump(config)


def misplaced_secrets(good: str) -> str:
    """A key in place of its hash, a common mistake."""
    config = yaml.safe_load(good)
    config["tenants"]["acme"]["keys"] = [KEY, {"key": KEY}]
    return yaml.safe_dump(config)


def misplaced_file(good: str) -> str:
    """A reference to a secret in settings that are not secret, and whose values messages quote."""
    config = yaml.safe_load(good)
    reference = f"${{file:{KEY_FILE}}}"
    config["drain_grace"] = config["admin_keys"] = config["retry"]["attempts_max"] = reference
    config["pools"]["small"]["endpoints"] = [reference, f"http://user:{reference}@gpu"]
    return yaml.safe_dump(config)


def no_yaml(good: str) -> str:
    return good.replace("key_secret:", "key_secret: [").replace("tenants:", "\ttenants: {")
