"""The ledger in a complete gateway: database failures, restarts, configuration errors and secrets."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headgate.control.ledger_sync import LedgerSync
from headgate.ledger.options import DatabaseOptions, LedgerOptions
from headgate.model.money import EndpointTime
from headgate.model.units import Duration, Instant
from headgate.wire.keys import digest, format_digest
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import GatewayInLoop, chat, gateway_in_loop
from testing.ports import free_port
from tests.ledger.databases import SECRET, until
from tests.ledger.rows import all_rows
from tests.lessons.ledgers import a_gateway, with_ledger, written

WORDS = ("canary-prompt", "canary-answer", "hg-canary-key", "canary-idempotency", "canary-engine-key", "canary-unkept")
Link = "asyncpg.Connection[Any]"


async def ask(gateway: GatewayInLoop, body: dict[str, Any], **headers: str) -> int:
    async with gateway.post(body, headers=headers) as answer:
        await answer.read()
        return answer.status


@pytest.mark.process
async def test_only_configured_metadata_keys_are_stored(url: str, link: Link, tmp_path: Path) -> None:
    kept = {"feature": "søk", "conversation": "c" * 128, "other": "x"}
    shapes: list[Any] = [
        *(kept, {"feature": 7}, {"feature": "c" * 129}, {"feature": "a\0b"}, "text", None, [], {}),
        {f"k{n}": "x" * 512 for n in range(100)},
    ]
    async with FakeEngine() as engine, a_gateway(url, tmp_path, engine.url) as gateway:
        for metadata in shapes:
            assert await ask(gateway, chat(metadata=metadata)) == 200
        rows = await written(gateway, len(shapes))

    found = [row.metadata for row in rows]
    assert found == [(("conversation", "c" * 128), ("feature", "søk")), *[()] * (len(shapes) - 1)]
    assert len(await all_rows(link)) == len(shapes)


@pytest.mark.process
async def test_rows_spool_and_log_contain_no_prompts_responses_keys_or_secrets(
    url: str, link: Link, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said = b'{"choices":[{"index":0,"message":{"content":"canary-answer"}}],"usage":{"prompt_tokens":3}}'
    async with FakeEngine(api_key="canary-engine-key") as engine:
        engine.behaviour = Behaviour(body=said, content_type="application/json")
        config = with_ledger(url, tmp_path, engine.url)
        config["pools"]["small"]["api_key"] = "canary-engine-key"
        config["tenants"]["acme"] = {"keys": [format_digest(digest(SECRET, "hg-canary-key"))]}
        headers = {"authorization": "Bearer hg-canary-key", "idempotency-key": "canary-idempotency"}
        metadata = {"feature": "kept-word", "other": "canary-unkept"}
        async with gateway_in_loop(config, tmp_path) as gateway:
            assert await ask(gateway, chat("canary-prompt", metadata=metadata), **headers) == 200
            await ask(gateway, chat("canary-prompt", model="unknown", metadata=metadata), **headers)
            await written(gateway, 1)
        # Rows waiting on disk while the database is unreachable.
        config["database"]["url"] = f"postgresql://postgres:canary-password@127.0.0.1:{free_port()}/x"
        async with gateway_in_loop(config, tmp_path) as gateway:
            engine.behaviour = Behaviour(hang_before_head=True)
            hanging = asyncio.create_task(ask(gateway, chat("canary-prompt", metadata=metadata), **headers))
            await gateway.wait_for_status(lambda status: status["attempts_open"] == 1)
            on_disk = _all_bytes(tmp_path / "spool")
            hanging.cancel()
            await asyncio.wait([hanging])
    on_disk += _all_bytes(tmp_path / "spool")
    tables = await link.fetch(
        "select relname from pg_class where relnamespace = 'headgate'::regnamespace and relkind = 'r'"
    )
    for table in tables:
        on_disk += repr(await link.fetch(f"select * from headgate.{table[0]}")).encode()

    assert b"kept-word" in on_disk
    assert [word for word in (*WORDS, "canary-password") if word.encode() in on_disk or word in caplog.text] == []


def _all_bytes(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


@pytest.mark.process
async def test_unwritten_rows_are_written_after_the_next_start(url: str, link: Link, tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = with_ledger(f"postgresql://postgres@127.0.0.1:{free_port()}/x", tmp_path, engine.url)
        async with gateway_in_loop(config, tmp_path) as gateway:
            for _ in range(5):
                assert await ask(gateway, chat()) == 200
        config["database"]["url"] = url
        async with gateway_in_loop(config, tmp_path) as gateway:
            assert await ask(gateway, chat()) == 200
            await written(gateway, 6)
        left = sorted(file.suffix for file in (tmp_path / "spool").iterdir())

    rows = await all_rows(link)
    assert [row.outcome for row in rows] == ["completed"] * 6
    assert left == []


@pytest.mark.process
async def test_gateway_is_not_ready_with_an_unmigrated_database(empty_url: str, tmp_path: Path) -> None:
    async with FakeEngine() as engine, a_gateway(empty_url, tmp_path, engine.url) as gateway:
        async with asyncio.timeout(60):
            while True:
                async with gateway.http.get(gateway.admin_url + "/ready") as answer:
                    if answer.status == 503:
                        said = await answer.text()
                        break
                await asyncio.sleep(0.05)

    assert "headgate ledger migrate" in said


async def test_endpoint_times_are_written_at_each_interval_and_on_shutdown(tmp_path: Path) -> None:
    database = DatabaseOptions("postgresql://nobody@127.0.0.1:1/none", "shown", Duration(1))
    settings = LedgerOptions(str(tmp_path / "spool"), 1_000_000, 30, (), share_idle_cost=False)
    ledger = LedgerSync(database, settings, endpoint_times_s=0.001)
    taken: list[int] = []

    def take_times() -> Sequence[EndpointTime]:
        taken.append(len(taken))
        return ()

    ledger.start(take_times, tuple, lambda: Instant(1))
    await until(lambda: len(taken) >= 3)
    before = len(taken)
    await ledger.stop()

    assert len(taken) > before


@pytest.mark.process
async def test_scheduler_writes_endpoint_times(url: str, link: Link, tmp_path: Path) -> None:
    async with FakeEngine() as engine, a_gateway(url, tmp_path, engine.url) as gateway:
        assert await ask(gateway, chat()) == 200
        await written(gateway, 1)

    [row] = await link.fetch(
        "select count(distinct at) as times, count(distinct endpoint) as endpoints, sum(total_us) as whole,"
        " sum(starting_us + unready_us + idle_us + billed_us + abort_lag_us) as parts from headgate.endpoint_time"
    )
    assert row["times"] >= 1
    assert row["endpoints"] == 1
    assert row["whole"] > 0
    assert abs(row["parts"] - row["whole"]) <= 10 * row["times"]


@pytest.mark.process
async def test_unusable_spool_prevents_startup_and_suggests_the_next_step(url: str, tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file, not a directory")
    async with FakeEngine() as engine:
        with pytest.raises(OSError, match=r"ledger.spool_directory: .*; create it as a directory that"):
            async with a_gateway(url, tmp_path, engine.url):
                pass


@pytest.mark.process
async def test_metrics_include_the_ledger_state(url: str, tmp_path: Path) -> None:
    async with FakeEngine() as engine, a_gateway(url, tmp_path, engine.url) as gateway:
        for _ in range(3):
            assert await ask(gateway, chat()) == 200
        await written(gateway, 3)
        async with gateway.http.get(gateway.admin_url + "/metrics") as answer:
            page = await answer.text()

    assert "headgate_ledger_rows_waiting 0.0" in page
    assert "headgate_ledger_database_up 1.0" in page
    assert 'headgate_ledger_rows_lost_total{reason="spool"} 0.0' in page
