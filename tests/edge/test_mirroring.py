"""Copies of requests: what mirrors receive, and what callers notice of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import GatewayInLoop, a_config, chat, gateway_in_loop, text_of

ROUTE = "stable"


@dataclass
class Pair:
    gateway: GatewayInLoop
    stable: FakeEngine
    candidate: FakeEngine

    async def results(self) -> dict[str, int]:
        """Counts of the selected requests by result, without zeros."""
        async with self.gateway.http.get(f"{self.gateway.admin_url}/metrics") as page:
            lines = (await page.text()).splitlines()
        found = [line for line in lines if line.startswith("headgate_mirrored_requests_total{")]
        return {
            line.partition('result="')[2].partition('"')[0]: int(float(line.rpartition(" ")[2]))
            for line in found
            if not line.endswith((" 0.0", " 0"))
        }

    async def wait_for_results(self, **expected: int) -> None:
        async with asyncio.timeout(60):
            while await self.results() != expected:
                await asyncio.sleep(0.01)

    async def ask(self, **fields: Any) -> tuple[str, str]:
        """Sends a streaming request. Returns the text of the response and the request id."""
        async with self.gateway.post(chat(stream=True, **fields)) as answer:
            assert answer.status == 200, await answer.text()
            return text_of(await answer.read()), answer.headers["x-request-id"]

    async def explain(self, request_id: str) -> dict[str, Any]:
        async with self.gateway.http.get(f"{self.gateway.admin_url}/explain/{request_id}") as answer:
            return await answer.json()


@asynccontextmanager
async def mirrored(
    folder: Path, *, mirror: dict[str, Any] | None = None, places: int = 8, **settings: Any
) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        stable = await stack.enter_async_context(FakeEngine())
        candidate = await stack.enter_async_context(FakeEngine(models=("candidate-model",)))
        route = {"pools": ["small"], "name": ROUTE, "mirror": mirror or {"pools": ["candidate"]}}
        models = {"m": {"pools": ["small"], "routes": [route]}}
        config = a_config(stable.url, models=models, **settings)
        config["pools"]["candidate"] = config["pools"]["small"] | {
            "endpoints": [candidate.url],
            "served_model": "candidate-model",
            "in_flight_max": places,
        }
        yield Pair(await stack.enter_async_context(gateway_in_loop(config, folder)), stable, candidate)


async def test_mirror_receives_the_request_with_its_own_model_name(tmp_path: Path) -> None:
    async with mirrored(tmp_path) as pair:
        text, _ = await pair.ask(content="hello", temperature=0.5)
        original, copy = await pair.stable.next_request(), await pair.candidate.next_request()
        await pair.wait_for_results(completed=1)

    assert copy.json == original.json | {"model": "candidate-model"}
    assert text
    assert "x-headgate" not in json.dumps(dict(copy.headers)).lower()


async def test_copy_does_not_carry_the_callers_trace(tmp_path: Path) -> None:
    parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    async with mirrored(tmp_path) as pair:
        async with pair.gateway.post(chat(), headers=parent) as answer:
            await answer.read()
        original, copy = await pair.stable.next_request(), await pair.candidate.next_request()

    assert "traceparent" in original.headers
    assert "traceparent" not in copy.headers


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [400, 500, 503])
async def test_caller_does_not_notice_a_mirror_that_fails(tmp_path: Path, status: int, *, stream: bool) -> None:
    async with mirrored(tmp_path) as pair:
        pair.candidate.behaviour = Behaviour(status=status)
        async with pair.gateway.post(chat(stream=stream)) as answer:
            assert answer.status == 200
            await answer.read()
        await pair.wait_for_results(failed=1)

        assert len(pair.candidate.requests) == 1


async def test_caller_does_not_wait_for_a_mirror_that_hangs(tmp_path: Path) -> None:
    async with mirrored(tmp_path) as pair:
        pair.candidate.behaviour = Behaviour(hang_after=0)
        text, _ = await pair.ask()
        copy = await pair.candidate.next_request()

        assert text
        assert not copy.ended.is_set()
        assert await pair.results() == {}
        copy.resume.set()
        await pair.wait_for_results(completed=1)


async def test_caller_does_not_notice_a_mirror_that_is_gone(tmp_path: Path) -> None:
    async with mirrored(tmp_path) as pair:
        await pair.candidate.kill()
        text, _ = await pair.ask()

        assert text
        await pair.gateway.wait_until_idle()
        [(result, count)] = (await pair.results()).items()
        assert (result in {"failed", "no_endpoints"}, count) == (True, 1)


async def test_copy_continues_when_the_caller_disconnects(tmp_path: Path) -> None:
    async with mirrored(tmp_path) as pair:
        pair.stable.behaviour = Behaviour(hang_after=1)
        pair.candidate.behaviour = Behaviour(hang_after=1)
        async with pair.gateway.post(chat(stream=True)) as answer:
            await answer.content.readany()
            copy = await pair.candidate.next_request()
        original = await pair.stable.next_request()
        await original.client_left.wait()
        copy.resume.set()

        await pair.wait_for_results(completed=1)


@pytest.mark.parametrize("stream", [True, False])
async def test_copy_is_sent_once_the_response_begins(tmp_path: Path, *, stream: bool) -> None:
    async with mirrored(tmp_path) as pair:
        pair.stable.behaviour = Behaviour(hang_after=0)
        asking = asyncio.create_task(_completed(pair, stream=stream))
        original = await pair.stable.next_request()
        copies_before = (await pair.gateway.status())["held"]["mirrors"]
        original.resume.set()
        assert await asking == 200
        await pair.wait_for_results(completed=1)

    assert copies_before == 0
    assert len(pair.candidate.requests) == 1


async def test_request_without_a_response_is_not_copied(tmp_path: Path) -> None:
    async with mirrored(tmp_path) as pair:
        pair.stable.behaviour = Behaviour(status=400)
        status = await _completed(pair, stream=True)
        await pair.gateway.wait_until_idle()

        assert (status, await pair.results(), pair.candidate.requests) == (400, {}, [])


async def _completed(pair: Pair, *, stream: bool) -> int:
    """Sends a request, reads the whole response and returns its status."""
    async with pair.gateway.post(chat(stream=stream)) as answer:
        await answer.read()
        return answer.status


async def test_only_idle_capacity_is_used(tmp_path: Path) -> None:
    async with mirrored(tmp_path, places=1) as pair:
        pair.candidate.behaviour = Behaviour(hang_after=0)
        await pair.ask()
        copy = await pair.candidate.next_request()
        await pair.ask()
        await pair.wait_for_results(busy=1)
        copy.resume.set()
        await pair.wait_for_results(busy=1, completed=1)


async def test_number_of_copies_is_limited(tmp_path: Path) -> None:
    async with mirrored(tmp_path, limits={"mirrors_open_max": 1}) as pair:
        pair.candidate.behaviour = Behaviour(hang_after=0)
        await pair.ask()
        copy = await pair.candidate.next_request()
        await pair.ask()
        assert await pair.results() == {"limit": 1}
        assert (await pair.gateway.status())["held"]["mirrors"] == 1
        copy.resume.set()
        await pair.wait_for_results(limit=1, completed=1)


async def test_large_bodies_are_not_copied(tmp_path: Path) -> None:
    async with mirrored(tmp_path) as pair:
        await pair.ask(content="x" * 300_000)

        assert await pair.results() == {"body_too_large": 1}
        assert pair.candidate.requests == []


async def test_nothing_is_copied_at_a_share_of_0_percent(tmp_path: Path) -> None:
    async with mirrored(tmp_path, mirror={"pools": ["candidate"], "percent": 0}) as pair:
        await asyncio.gather(*(pair.ask() for _ in range(20)))

        assert await pair.results() == {}


async def test_copies_stop_when_the_gateway_drains(tmp_path: Path) -> None:
    async with mirrored(tmp_path, drain_grace="60s") as pair:
        pair.candidate.behaviour = Behaviour(hang_after=0)
        await pair.ask()
        copy = await pair.candidate.next_request()
        pair.gateway.gateway.shut_down()
        async with asyncio.timeout(30):
            await copy.client_left.wait()
            await pair.gateway.running


async def test_reload_adds_and_removes_mirrors(tmp_path: Path) -> None:
    async with mirrored(tmp_path) as pair:
        config = yaml.safe_load(pair.gateway.file.read_text())
        [route] = config["models"]["m"]["routes"]
        mirror = route.pop("mirror")
        await pair.gateway.rewrite(config)
        await pair.ask()
        before = len(pair.candidate.requests)
        route["mirror"] = mirror
        await pair.gateway.rewrite(config)
        await pair.ask()
        await pair.wait_for_results(completed=1)

    assert before == 0


async def test_explanations_of_a_request_and_its_copy_name_each_other(tmp_path: Path) -> None:
    async with mirrored(tmp_path) as pair:
        _, request_id = await pair.ask()
        await pair.wait_for_results(completed=1)
        original, copy = await pair.explain(request_id), await pair.explain(f"{request_id}-mirror")

    [step] = [each for each in original["steps"] if each["kind"] == "mirrored"]
    assert step["copy"] == f"{request_id}-mirror"
    assert f"was copied to a mirror as {request_id}-mirror" in original["summary"]
    assert f"is a mirrored copy of {request_id}" in copy["summary"]
    assert (copy["class"], copy["tenant"]) == ("mirror", "_mirror")


async def test_latencies_of_copies_are_measured_in_their_own_class(tmp_path: Path) -> None:
    async with mirrored(tmp_path) as pair:
        await pair.ask()
        await pair.wait_for_results(completed=1)
        classes = (await pair.gateway.status())["counted"]["classes"]

    assert classes["mirror"]["ended"]["completed"] == 1
    assert classes["interactive"]["ended"]["completed"] == 1
