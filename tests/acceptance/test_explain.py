"""`headgate explain` and the explain API with a live gateway and real requests."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.cli.main import main
from headgate.telemetry.records.segment import blocks, rows_of
from headgate.telemetry.records.segment_writer import segments
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import NO_TARGETS, RunningGateway, a_config, chat, gateway_in_loop, gateway_process_with_client

CANARY = "canary-prompt"


@asynccontextmanager
async def a_gateway(engine: FakeEngine, folder: Path, **settings: Any) -> AsyncIterator[RunningGateway]:
    async with gateway_in_loop(a_config(engine.url, **settings), folder) as gateway:
        yield gateway


async def asked(gateway: RunningGateway, **fields: Any) -> tuple[int, str]:
    """Status of one request and the ID in its response."""
    async with gateway.post(chat(CANARY, **fields)) as answer:
        await answer.read()
        return answer.status, answer.headers["x-request-id"]


async def explained(gateway: RunningGateway, request_id: str) -> dict[str, Any]:
    async with gateway.http.get(f"{gateway.admin_url}/explain/{request_id}") as page:
        assert page.status == 200
        assert CANARY not in await page.text()
        return await page.json()


async def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code and output of `headgate explain`. It runs in a thread because it queries the gateway in this event
    loop.
    """
    capsys.readouterr()
    code = await asyncio.to_thread(main, ["explain", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def kinds(explanation: dict[str, Any]) -> list[str]:
    return [step["kind"] for step in explanation["steps"]]


async def test_command_explains_a_completed_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with FakeEngine() as engine, a_gateway(engine, tmp_path) as gateway:
        _, request_id = await asked(gateway, stream=True)
        code, out, err = await command(capsys, request_id, "--config", str(gateway.file))

    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert out.replace("\n", " ").startswith(f"{request_id} (tenant laptop, class interactive) was sent immediately")
    assert "ended: completed" in out
    assert max(len(line) for line in lines) <= 80
    assert "\x1b" not in out


async def test_explanation_of_retry_omits_engine_error_text(tmp_path: Path) -> None:
    async with FakeEngine() as engine, a_gateway(engine, tmp_path) as gateway:
        engine.script.append(Behaviour(status=500, error=f"cannot process {CANARY}"))
        status, request_id = await asked(gateway)
        data = await explained(gateway, request_id)

    assert (status, data["outcome"]) == (200, "completed")
    attempts = ["dispatched", "attempt_ended", "dispatched", "first_token", "attempt_ended", "ended"]
    assert [kind for kind in kinds(data) if kind != "queued"] == ["arrived", *attempts]
    assert "attempt 1 failed (the engine reported an error with status 500)" in data["summary"]


async def test_explanation_quotes_engine_error_if_configured(tmp_path: Path) -> None:
    async with FakeEngine() as engine, a_gateway(engine, tmp_path, quote_engine_errors=True) as gateway:
        engine.script.append(Behaviour(status=500, error="out of pages"))
        _, request_id = await asked(gateway)
        data = await explained(gateway, request_id)

    assert "attempt 1 failed (the engine reported an error with status 500: out of pages)" in data["summary"]


async def test_explanation_of_rejected_request_gives_the_reason(tmp_path: Path) -> None:
    async with FakeEngine() as engine, a_gateway(engine, tmp_path) as gateway:
        status, request_id = await asked(gateway, model="unheard-of")
        data = await explained(gateway, request_id)

    assert (status, data["outcome"], kinds(data)) == (404, "model_not_found", ["arrived", "ended"])
    assert 'was rejected on arrival with model_not_found: model "unheard-of" does not exist' in data["summary"]


async def test_explanation_of_queued_request_lists_requests_sent_in_the_meantime(tmp_path: Path) -> None:
    async with FakeEngine() as engine, a_gateway(engine, tmp_path, in_flight_max=1) as gateway:
        engine.behaviour = Behaviour(hang_before_head=True)
        order = [asyncio.create_task(asked(gateway))]
        held = [await engine.next_request()]
        for waiting in (1, 2):
            order.append(asyncio.create_task(asked(gateway)))
            await gateway.wait_for_status(lambda status, waiting=waiting: status["queued"]["interactive"] == waiting)
        for _ in order[1:]:
            # Make every wait longer than zero.
            await asyncio.sleep(0.02)
            held[-1].resume.set()
            held.append(await engine.next_request())
        held[-1].resume.set()
        answers = await asyncio.gather(*order)
        told = [await explained(gateway, request_id) for _, request_id in answers]

    sent = [[step["sent_meanwhile"] for step in each["steps"] if step["kind"] == "queued"] for each in told]
    assert sent == [[], [[]], [[{"tenant": "laptop", "class": "interactive", "requests": 1}]]]
    assert [each["outcome"] for each in told] == ["completed"] * 3


async def test_explanation_of_disconnected_request_shows_outcome_cancelled(tmp_path: Path) -> None:
    async with FakeEngine() as engine, a_gateway(engine, tmp_path) as gateway:
        engine.behaviour = Behaviour(tokens=8, hang_after=2)
        async with gateway.post(chat(CANARY, stream=True)) as answer:
            request_id = answer.headers["x-request-id"]
            await answer.content.readany()
        await gateway.wait_until_idle()
        data = await explained(gateway, request_id)

    assert data["outcome"] == "cancelled"
    assert kinds(data) == ["arrived", "dispatched", "first_token", "aborted", "ended", "attempt_ended"]


async def test_request_rejected_before_scheduling_is_explained_from_its_record(tmp_path: Path) -> None:
    async with FakeEngine() as engine, a_gateway(engine, tmp_path) as gateway:
        status, request_id = await asked(gateway, n=-1)
        data = await explained(gateway, request_id)

    assert (status, data["outcome"], data["status"]) == (400, "invalid_request", 400)
    assert f"{request_id} (tenant laptop) ended before scheduling after " in data["summary"]
    assert kinds(data) == ["arrived", "ended"]
    assert {each["stage"] for each in data["stages"]} <= {"ingress", "auth", "classify", "settle"}


async def until_known(gateway: RunningGateway, request_id: str) -> dict[str, Any]:
    """Wait for the record, which is available shortly after the response."""
    async with asyncio.timeout(60):
        while "stages" not in (data := await explained(gateway, request_id)):
            await asyncio.sleep(0.01)
    return data


async def until_written(gateway: RunningGateway) -> None:
    async with asyncio.timeout(60):
        while True:
            async with gateway.http.get(f"{gateway.admin_url}/metrics") as page:
                if "\nheadgate_records_written_total 1" in await page.text():
                    return
            await asyncio.sleep(0.05)


@pytest.mark.process
async def test_explanation_is_the_same_after_gateway_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {
        "records": {"directory": str(tmp_path / "records")},
        "classes": {"interactive": {**NO_TARGETS, "stage_budget": {"prefill": "10ms", "queue": "60s"}}},
    }
    async with FakeEngine() as engine:
        config = a_config(engine.url, **settings)
        async with gateway_process_with_client(config, tmp_path) as (gateway, process):
            engine.script.append(Behaviour(status=500, error=f"cannot process {CANARY}"))
            engine.script.append(Behaviour(pace_s=0.1, tokens=2))
            _, request_id = await asked(gateway, stream=True)
            before = await until_known(gateway, request_id)
            await until_written(gateway)
            process.kill()
        async with gateway_process_with_client(config, tmp_path) as (gateway, _):
            after = await explained(gateway, request_id)
            listed = await gateway.http.get(
                f"{gateway.admin_url}/requests", params={"min_duration_ms": 50, "since": "10m"}
            )
            [found] = (await listed.json())["requests"]
            file = str(gateway.file)
            shown = await command(capsys, request_id, "--config", file)
            table = await command(capsys, "--tenant", "laptop", "--since", "10m", "--config", file)

    assert after == before
    assert "attempt 1 failed (the engine reported an error with status 500)" in after["summary"]
    assert after["over_budget"] == ["prefill"]
    assert [each["attempt"] for each in after["stages"] if each["stage"] == "prefill"] == [1, 2]
    assert (found["request_id"], found["over_budget"]) == (request_id, ["prefill"])
    assert (shown[0], shown[2]) == (0, "")
    assert re.search(r"^prefill, attempt 2 +[0-9.]+ +0\.010 +#*!+$", shown[1], re.MULTILINE)
    assert max(len(line) for line in shown[1].splitlines()) <= 80
    assert (table[0], table[2]) == (0, "")
    assert f"  {request_id}  " in table[1]
    # The first attempt also includes a prefill, which may be long enough to show up on a busy machine.
    assert re.search("^  [a-z]*P[a-zP]*$", table[1], re.MULTILINE)
    kept = [
        row
        for path in segments(tmp_path / "records")
        for block, _ in blocks(path)
        for row in rows_of(block, range(block.rows))
    ]
    assert [row.key.request_id for row in kept] == [request_id]
    assert CANARY not in repr(kept)
