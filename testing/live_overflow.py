"""A gateway with own engines and a hosted provider under overload, as separate processes, with its bills.

The own engines are simulated. The provider is a real LiteLLM proxy in front of a faster simulated engine, which records
its tokens. The ledger is in a real PostgreSQL.
"""

import asyncio
import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from headgate.control.directory_sync import migrate_database
from headgate.model.engine_profile import PROFILES
from headgate.simulation.server.record import read_record
from headgate.wire.keys import digest, format_digest
from testing.gateway import Config, RunningGateway, gateway_process_with_client
from testing.hosted_overflow import SECRET, overflow_config
from testing.postgres import postgres
from testing.real_litellm import KEY, VENDOR, VENDOR_KEY, LiteLlmProxy, litellm_proxy
from testing.simulated_engines import HEADGATE, loadtest_result, simulated_engines, start_loadtest

OWN_ENGINES = 1
OWN = PROFILES["h100x8-llama-70b"]
OVERLOAD = 1.5
"""Load as a multiple of the capacity of the own engines."""
INTERACTIVE_SHARE = 0.8
"""Interactive share of the load, which alone exceeds that capacity. The rest is batch work, which does not overflow."""
PROMPT_TOKENS, OUTPUT_TOKENS = 2_000, 20
REQUEST_S = 0.147
"""Time that one own engine needs for a request of this size, mostly for its prompt (`headgate.core.cost`)."""
TTFT_S = 2.0
PRICES = {"input_per_1m_tokens": 0.20, "cached_per_1m_tokens": 0.10, "output_per_1m_tokens": 0.80}
_OPERATOR_KEY = "hg-operator"
_DRAIN_S_MAX = 180.0


@dataclass(frozen=True)
class Vendor:
    """LiteLLM and the engine behind it."""

    proxy: LiteLlmProxy
    record: Path


@dataclass(frozen=True)
class Tokens:
    requests: int
    prompt: int
    cached: int
    output: int

    @property
    def nano_usd(self) -> int:
        """The price of these tokens at the provider."""
        full, cached, output = (round(1_000 * price) for price in PRICES.values())
        return (self.prompt - self.cached) * full + self.cached * cached + self.output * output


@dataclass(frozen=True)
class OverflowRun:
    sent: int
    completed: int
    attainment: float
    """Share of the interactive requests whose first token arrived within `TTFT_S`."""
    recorded: Tokens
    """Tokens of the requests that the vendor has finished."""
    billed: Tokens
    """Tokens of the attempts at the provider, in the database."""
    billed_nano_usd: int
    """Cost of these attempts, in the database."""
    reported_nano_usd: int
    """Cost of the provider according to `headgate cost --by pool`."""


@contextmanager
def vendor_behind_litellm(folder: Path) -> Iterator[Vendor]:
    record = folder / "vendor.jsonl"
    arguments = ("--profile", "h200-llama-8b", "--api-key", VENDOR_KEY, "--record", str(record))
    with simulated_engines(1, *arguments, model="m") as [url], litellm_proxy(url) as proxy:
        _warm_up(proxy)
        yield Vendor(proxy, record)


def _warm_up(proxy: LiteLlmProxy) -> None:
    """Send one request. LiteLLM needs seconds for the first one, because it imports its client only then."""
    question = {"model": VENDOR, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    request = urllib.request.Request(f"{proxy.url}/v1/chat/completions", json.dumps(question).encode(), headers)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=60.0) as answer:
        answer.read()


async def run_overload(vendor: Vendor, folder: Path, *, seconds: float, overflows: bool) -> OverflowRun:
    """Send traffic for `seconds` and return what became of it. Without overflow, only the own engines serve."""
    earlier = len(read_record(vendor.record))
    rate = OVERLOAD * OWN_ENGINES / REQUEST_S
    with postgres(options=("fsync=off",)) as database, simulated_engines(OWN_ENGINES, "--profile", OWN.name) as own:
        await migrate_database(database.url, lambda _: None)
        config = _config(own, vendor.proxy.url, database.url, folder, overflows=overflows)
        async with gateway_process_with_client(config, folder) as (gateway, _):
            loadtest = start_loadtest(gateway.url, *_traffic(rate, seconds))
            found = await asyncio.to_thread(loadtest_result, loadtest, seconds + _DRAIN_S_MAX)
            await gateway.wait_for_status(_is_written)
            reported = await _reported_nano_usd(gateway)
        billed, nano_usd = await _billed(database.url)
    interactive = found["classes"]["interactive"]
    return OverflowRun(
        sent=found["total"]["offered"],
        completed=found["total"]["completed"],
        attainment=interactive["good"] / interactive["offered"],
        recorded=_recorded(vendor.record, earlier),
        billed=billed,
        billed_nano_usd=nano_usd,
        reported_nano_usd=reported,
    )


def _config(own: list[str], provider: str, database: str, folder: Path, *, overflows: bool) -> Config:
    config = overflow_config(own[0], provider, served_model=VENDOR, api_key=KEY, after="500ms", classes=["interactive"])
    pools = config["pools"]
    pools["small"] |= {"endpoints": own, "served_model": "sim", "in_flight_max": 64, "speed": OWN.name}
    pools["small"]["prices"] = {"per_hour": 2}
    pools["cloud"] |= {"in_flight_max": 32, "prices": dict(PRICES)}
    if not overflows:
        del pools["cloud"]
        config["models"] = {"m": "small"}
    config["classes"] = {
        "interactive": {"priority_band": 0, "ttft": f"{TTFT_S:g}s", "tpot": "unlimited", "queue_wait_max": "5s"},
        "batch": {"priority_band": 1, "ttft": "unlimited", "tpot": "unlimited", "queue_wait_max": "120s"},
    }
    config["database"] = {"url": database}
    config["ledger"] = {"spool_directory": str(folder / "spool")}
    operator = format_digest(digest(SECRET.encode(), _OPERATOR_KEY))
    config["admin_keys"] = {"operator": {"key": operator, "permissions": ["read", "cost"]}}
    return config


def _traffic(rate: float, seconds: float) -> Iterator[str]:
    yield from ("--model", "m", "--rate", f"{rate:g}", "--duration", f"{seconds:g}", "--ignore-eos")
    yield from ("--prompt-tokens", str(PROMPT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS))
    yield from ("--mix", f"class=interactive,share={INTERACTIVE_SHARE:g}")
    yield from ("--mix", f"class=batch,share={1 - INTERACTIVE_SHARE:g}")
    yield from ("--slo-ttft", f"{TTFT_S:g}", "--retries", "0", "--drain-timeout", f"{_DRAIN_S_MAX:g}")


def _is_written(status: dict[str, Any]) -> bool:
    return not status["ledger"]["rows_waiting"] and not status["requests_open"] and not status["attempts_open"]


async def _reported_nano_usd(gateway: RunningGateway) -> int:
    command = [*HEADGATE, "cost", "--by", "pool", "--json", "--url", gateway.admin_url]
    environment = os.environ | {"HEADGATE_ADMIN_KEY": _OPERATOR_KEY}
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    out, _ = await process.communicate()
    assert process.returncode == 0, out
    return sum(line["cost_nano_usd"] for line in json.loads(out)["lines"] if line["name"] == "cloud")


async def _billed(url: str) -> tuple[Tokens, int]:
    link = await asyncpg.connect(url)
    try:
        row = await link.fetchrow(
            "select count(*), coalesce(sum(tokens_in), 0), coalesce(sum(tokens_cached), 0),"
            " coalesce(sum(tokens_out), 0), coalesce(sum(input_nano_usd + output_nano_usd + overhead_nano_usd), 0)"
            " from headgate.usage where pool = 'cloud'"
        )
    finally:
        await link.close()
    assert row is not None
    requests, prompt, cached, output, nano_usd = map(int, row)
    return Tokens(requests, prompt, cached, output), nano_usd


def _recorded(file: Path, earlier: int) -> Tokens:
    """Tokens of the finished requests after the first `earlier` ones."""
    lines: list[Any] = [line for line in read_record(file)[earlier:] if line["outcome"] == "finished"]
    counts = (sum(line[name] for line in lines) for name in ("prompt_tokens", "cached_tokens", "output_tokens"))
    return Tokens(len(lines), *counts)
